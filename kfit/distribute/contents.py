"""Checks whether a container holds only plain values of Python and NumPy."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

VALUES = frozenset({str, bytes, int, float, complex, bool, type(None), np.ndarray})
DEEPEST = 50
"""The number of levels of nested containers that are searched."""

_CONTAINERS = (list, tuple, dict)


def holds_only_values(container: Any) -> bool:
    """Returns whether a list, tuple or dict holds only plain values: numbers, texts, arrays, None.

    A search for variables or metrics can skip such a container. Containers inside the container are
    checked, too. If containers are nested too deeply to be searched, the result is False. The loops
    run in C, since a container, such as a vocabulary, may have a million values.

    Args:
        container: The list, tuple or dict. Only the values of a dict are checked, not its keys.
    """
    seen: set[int] = {id(container)}
    level: list[Any] = [container]
    for _ in range(DEEPEST):
        parts = [part.values() if isinstance(part, dict) else part for part in level]
        items = list(chain.from_iterable(parts))
        others = set(map(type, items)) - VALUES
        if not others:
            return True
        if not all(issubclass(kind, _CONTAINERS) for kind in others):
            return False
        inner = {id(item): item for item in items if isinstance(item, _CONTAINERS)}
        level = [item for key, item in inner.items() if key not in seen]
        seen.update(inner)
    return False
