"""Replaces functions of Keras and TensorFlow for the time of a `with` block.

Several threads may do this at the same time, and the blocks may end in any order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kfit.internals.private import MissingNameError

Wrap = Callable[[Any], Any]


@dataclass(frozen=True)
class Point:
    """A function of Keras or TensorFlow that kfit may replace for a while ("patch point").

    Attributes:
        owner: The class, module or other object that has the function as an attribute.
        name: The name of the attribute.
        because: Why kfit must replace the function: no public alternative exists.
    """

    owner: Any
    name: str
    because: str


_LOCK = threading.RLock()


@dataclass
class _Patch:
    """A function that is replaced now: the original, and the wrappers that `patched` has applied.

    Attributes:
        original: The attribute's value before any patch.
        inherited: Whether the attribute was not the owner's own before any patch: a class inherits
            it from a base class, an instance from its class. The owner's attribute is then deleted
            when the last patch ends.
        wraps: The active wrappers, innermost first.
        entered: For each active wrapper (by id), the number of active `with` blocks that use it.
    """

    original: Any
    inherited: bool
    wraps: list[Wrap] = field(default_factory=list)
    entered: dict[int, int] = field(default_factory=dict)

    def value(self) -> Any:
        """Returns the original function, wrapped by all active wrappers."""
        value = self.original
        for wrap in self.wraps:
            value = wrap(value)
        return value


_PATCHES: dict[tuple[int, str], _Patch] = {}
"""The active patches, by the owner's id and the name; active `with` blocks keep the owner alive."""


@contextmanager
def patched(point: Point, wrap: Wrap, *, of: Any = None) -> Iterator[None]:
    """Context in which the function at a patch point is replaced by `wrap(function)`.

    The replacement is active in all threads, from the first entry with this `wrap` until the last
    exit. Meanwhile further entries with the same `wrap` change nothing. Blocks with different
    wrappers can be left in any order: the wrappers of the remaining blocks stay active.

    Args:
        point: The patch point.
        wrap: Takes the function and returns its replacement.
        of: If given, the attribute is replaced on this object only, and not on the owner of
            `point`.

    Raises:
        MissingNameError: If the owner has no such function.
    """
    owner = point.owner if of is None else of
    _enter(owner, point.name, wrap)
    try:
        yield
    finally:
        _leave(owner, point.name, wrap)


def _enter(owner: Any, name: str, wrap: Wrap) -> None:
    with _LOCK:
        there = _PATCHES.get((id(owner), name))
        if there is None:
            original = getattr(owner, name, None)
            if original is None:
                raise MissingNameError(f"{getattr(owner, '__name__', type(owner).__name__)}.{name}")
            # A cell of a closure has no attributes of its own, and nothing is inherited.
            there = _Patch(original, inherited=name not in getattr(owner, "__dict__", {name}))
        count = there.entered.get(id(wrap), 0)
        if not count:
            setattr(owner, name, wrap(getattr(owner, name)))
            there.wraps.append(wrap)
        there.entered[id(wrap)] = count + 1
        _PATCHES[id(owner), name] = there


def _leave(owner: Any, name: str, wrap: Wrap) -> None:
    with _LOCK:
        there = _PATCHES[id(owner), name]
        there.entered[id(wrap)] -= 1
        if there.entered[id(wrap)]:
            return
        del there.entered[id(wrap)]
        there.wraps = [each for each in there.wraps if each is not wrap]
        if there.wraps:
            setattr(owner, name, there.value())
            return
        del _PATCHES[id(owner), name]
        if there.inherited:
            delattr(owner, name)
        else:
            setattr(owner, name, there.original)
