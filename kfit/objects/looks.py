"""What is known of large containers from one look to the next, so that a save need not read them.

A vocabulary of a million words hardly ever changes, and to find that out word by word takes a tenth
of a second and more. But what it holds can't change, words as little as numbers: so a container
that holds the very same objects as at the last look, in the same places, is what it was then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np

from kfit.objects.plain_objects import mark_of
from kfit.objects.values import elements, is_exact, size_of

LARGE = 1000
"""Values in a container, or characters of a text, from which on it is large."""
_MOST_INSIDE = 100
"""Containers that can change in one that is remembered."""
_TEXTS = (str, bytes)
_FIXED = frozenset({type(None), bool, int, float, *_TEXTS})
_CONTAINERS = (list, tuple, set, frozenset, deque, dict)


class Looks:
    """Looks at what may be large.

    Args:
        foreign: Identities of objects that belong to others and may change.
    """

    def __init__(self, foreign: Container[int]) -> None:
        self._foreign = foreign
        self._before: dict[int, Known] = {}
        self._now: dict[int, Known] = {}
        self._is_looking = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """One look: within it a container is compared once. One inside of another is part of it."""
        if self._is_looking:
            yield
            return
        self._is_looking, self._before, self._now = True, self._now, {}
        try:
            yield
        finally:
            self._is_looking = False

    def at(self, value: Any) -> Known:
        """What is known of a value in this look."""
        if not self._is_looking or not _is_large(value):
            return Known(value, self._foreign)
        known = self._now.get(id(value))
        if known is None:
            known = self._before.get(id(value))
            if known is None or not known.is_still():
                known = Known(value, self._foreign)
                known.remember()
            self._now[id(value)] = known
        return known


class Known:
    """What is known of a value: read when it is asked for, and once."""

    def __init__(self, value: Any, foreign: Container[int]) -> None:
        self._value = value  # as long as it lives no other has its identity
        self._foreign = foreign
        self._contents: _Contents | None = None

    @cached_property
    def is_exact(self) -> bool:
        """See `values.is_exact`."""
        return is_exact(self._value)

    @cached_property
    def size(self) -> int:
        """See `values.size_of`."""
        return size_of(self._value)

    @cached_property
    def mark(self) -> Any:
        """See `plain_objects.mark_of`."""
        return mark_of(self._value, self._foreign)

    def remember(self) -> None:
        """From now on it is known what the value holds, if it can be."""
        if self.is_exact:
            self._contents = _Contents.of(self._value)

    def is_still(self) -> bool:
        """Whether the value holds what it held; False where nobody knows."""
        return self._contents is not None and self._contents.are_still_there()


class _Contents:
    """The objects in a container, and those in the containers inside of it.

    Args:
        value: The container.
        items: The objects in it; None of what can't change.
        inside: The contents of those that can change.
    """

    def __init__(self, value: Any, items: tuple[Any, ...] | None, inside: list[_Contents]) -> None:
        self._value = value
        self._items = items
        self._inside = inside

    @classmethod
    def of(cls, value: Any) -> _Contents | None:
        """The contents of a value that is exact; None where arrays or many containers are in it."""
        if _is_fixed(value):
            return cls(value, None, [])
        if type(value) not in _CONTAINERS:
            return None
        items = _items_of(value)
        inside: list[_Contents] = []
        for item in () if set(map(type, items)) <= _FIXED else items:
            if not _is_fixed(item):
                contents = cls.of(item) if len(inside) < _MOST_INSIDE else None
                if contents is None:
                    return None
                inside.append(contents)
        return cls(value, items, inside)

    def are_still_there(self) -> bool:
        """Whether the container holds the very same objects, in the same places."""
        if self._items is None:
            return True
        now = _items_of(self._value)
        return (
            len(now) == len(self._items)
            and all(map(is_, now, self._items))
            and all(contents.are_still_there() for contents in self._inside)
        )


def _items_of(container: Any) -> tuple[Any, ...]:
    if type(container) is dict:
        return (*container, *container.values())
    return tuple(container)


def _is_fixed(value: Any) -> bool:
    """Whether a value can't change, nor anything in it."""
    if type(value) in (tuple, frozenset):
        return set(map(type, value)) <= _FIXED or all(map(_is_fixed, value))
    return type(value) in _FIXED or isinstance(value, np.generic)


def _is_large(value: Any) -> bool:
    if type(value) in _TEXTS:
        return len(value) >= LARGE
    return isinstance(value, _CONTAINERS) and elements(value, LARGE) >= LARGE
