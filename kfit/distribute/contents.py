"""Whether a container may hold anything but values of Python and NumPy."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np

VALUES = frozenset({str, bytes, int, float, complex, bool, type(None), np.ndarray})
DEEPEST = 50
"""Containers in one another that are looked into."""

_CONTAINERS = (list, tuple, dict)


def holds_only_values(container: Any) -> bool:
    """Whether a list, tuple or dict, and those in it, hold values of Python and NumPy alone.

    At the speed of C: this is asked at each save, and a vocabulary has a million words.
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
