"""Caches what is known of large containers, so that a save need not read them again.

A vocabulary of a million words hardly ever changes, and comparing it word by word takes a tenth of
a second or more. But words and numbers are immutable. So a container that has the very same objects
in the same places as before has not changed.

A look is one search through an object's state, during which no value changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import cached_property
from operator import is_
from typing import Any

import numpy as np

from kfit.objects.aliases import Path, parts_of
from kfit.objects.plain_objects import mark_of
from kfit.objects.values import DICTS, elements, is_exact, size_of

LARGE = 1000
"""A container with this many values, or a text with this many characters, is large."""
_MOST_INSIDE = 100
"""The most mutable containers inside a container that is cached."""
_TEXTS = (str, bytes)
_FIXED = frozenset({type(None), bool, int, float, *_TEXTS})
_CONTAINERS = (list, tuple, set, frozenset, deque, *DICTS)


class Looks:
    """A cache of facts about large values, such as checksums, to search an object's state faster.

    Each search is called a look. A large value that holds the very same immutable objects as in the
    previous look has not changed, so its facts are taken from the cache.

    Args:
        foreign: Ids (as of `id`) of objects whose changes are ignored.
    """

    def __init__(self, foreign: Container[int]) -> None:
        self._foreign = foreign
        self._before: dict[int, Known] = {}
        self._now: dict[int, Known] = {}
        self._is_looking = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """A context for one search through an object's state (a look), in which no value changes.

        So the facts about each large value are determined only once. A context within another one
        is part of the same search.
        """
        if self._is_looking:
            yield
            return
        self._is_looking, self._before, self._now = True, self._now, {}
        try:
            yield
        finally:
            self._is_looking = False

    def at(self, value: Any) -> Known:
        """Returns the facts about a value: its size, for example, and a mark to detect changes.

        They come from the cache if the value is large and unchanged.
        """
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
    """Facts about one value, such as its size; each is computed once, when it is first needed.

    Args:
        value: The value.
        foreign: Ids (as of `id`) of objects whose changes are ignored.
    """

    def __init__(self, value: Any, foreign: Container[int]) -> None:
        self._value = value  # keeps it alive, so that no other object gets its id
        self._foreign = foreign
        self._contents: _Contents | None = None

    @cached_property
    def is_exact(self) -> bool:
        """Whether the value can be restored with exactly its type; see `values.is_exact`."""
        return is_exact(self._value)

    @cached_property
    def size(self) -> int:
        """The estimated number of bytes that the value takes; see `values.size_of`."""
        return size_of(self._value)

    @cached_property
    def parts(self) -> list[tuple[Path, Any]]:
        """What in the value may change in place, by paths; none if it cannot be saved."""
        return list(parts_of(self._value)) if self.is_exact else []

    @cached_property
    def mark(self) -> Any:
        """A mark, such as a checksum, that differs once the value has changed (see `mark_of`)."""
        return mark_of(self._value, self._foreign)

    def remember(self) -> None:
        """Records which objects the value holds, so that `is_still` can compare them later.

        Nothing is recorded if the value could not be restored with exactly its type (`is_exact`).
        """
        if self.is_exact:
            self._contents = _Contents.of(self._value)

    def is_still(self) -> bool:
        """Returns whether the value still holds the objects that `remember` has recorded.

        The result is False if no objects were recorded.
        """
        return self._contents is not None and self._contents.are_still_there()


class _Contents:
    """A record of the objects in a container, and in the containers inside of it.

    If a container later holds the very same immutable objects, it has not changed.

    Args:
        value: The container, or an immutable value.
        items: The objects in the container; None if the value is immutable.
        inside: The records of those objects in the container that are mutable.
    """

    def __init__(self, value: Any, items: tuple[Any, ...] | None, inside: list[_Contents]) -> None:
        self._value = value
        self._items = items
        self._inside = inside

    @classmethod
    def of(cls, value: Any) -> _Contents | None:
        """Records the objects in a value.

        Args:
            value: A value for which `values.is_exact` is True.

        Returns:
            The record; None if there are arrays or too many containers in the value.
        """
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
        """Returns whether the container holds the same objects as recorded, in the same places."""
        if self._items is None:
            return True
        now = _items_of(self._value)
        return (
            len(now) == len(self._items)
            and all(map(is_, now, self._items))
            and all(contents.are_still_there() for contents in self._inside)
        )


def _items_of(container: Any) -> tuple[Any, ...]:
    if isinstance(container, dict):
        return (*container, *container.values())
    return tuple(container)


def _is_fixed(value: Any) -> bool:
    """Returns whether a value and all values in it are immutable."""
    if type(value) in (tuple, frozenset):
        return set(map(type, value)) <= _FIXED or all(map(_is_fixed, value))
    if isinstance(value, np.void):  # a record, whose fields may be set
        return False
    return type(value) in _FIXED or isinstance(value, np.generic)


def _is_large(value: Any) -> bool:
    if type(value) in _TEXTS:
        return len(value) >= LARGE
    return isinstance(value, _CONTAINERS) and elements(value, LARGE) >= LARGE
