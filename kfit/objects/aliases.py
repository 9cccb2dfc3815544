"""Finds lists, dicts, arrays and the like that are at several places of an object at once.

A file holds a copy for each place. So the state also says which places have the same value, as
after `self.rows.append(self.row)`: what is appended to one is appended to the other.
"""

from __future__ import annotations

import array as python_arrays
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from kfit.objects.holders import items_of
from kfit.objects.values import DICTS

Path = tuple[Any, ...]
_CONTAINERS = (list, deque, tuple, *DICTS)
_MUTABLE = frozenset({list, deque, set, bytearray, python_arrays.array, np.ndarray, *DICTS})
_INSIDE = frozenset({*_CONTAINERS, *_MUTABLE})


def parts_of(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Yields a value that can be saved, and the values in it, if they may change in place.

    Each has its path in the value. No container may contain itself.
    """
    if is_mutable(value):
        yield path, value
    if type(value) in _CONTAINERS:
        items = value.values() if isinstance(value, dict) else value
        if not _INSIDE.isdisjoint(map(type, items)):
            for key, item in items_of(value):
                yield from parts_of(item, (*path, key))


def aliases_in(parts: Iterable[tuple[Path, Any]]) -> dict[Path, Path]:
    """Returns the path of the same value that comes first, by each later path of a value."""
    first: dict[int, Path] = {}
    found = {path: first.setdefault(id(value), path) for path, value in parts}
    return {path: place for path, place in found.items() if path != place}


def is_mutable(value: Any) -> bool:
    """Returns whether a value that can be saved may change in place."""
    return type(value) in _MUTABLE


def value_at(places: dict[Path, Any], path: Path) -> Any:
    """Returns what is at a path, which may lead into a value; None if nothing is.

    Args:
        places: The values by their paths.
        path: The path.
    """
    for end in range(len(path), -1, -1):
        if path[:end] in places:
            value = places[path[:end]]
            for key in path[end:]:
                value = dict(items_of(value)).get(key) if type(value) in _CONTAINERS else None
            return value
    return None
