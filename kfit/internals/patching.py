"""Patches: functions replaced for a while, in any number of threads, left in any order."""

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
    """A function of Keras or TensorFlow that may be patched.

    Attributes:
        owner: The class or the module that has it.
        name: Its name.
        because: Why nothing public serves in place of a patch.
    """

    owner: Any
    name: str
    because: str


_LOCK = threading.RLock()


@dataclass
class _Patch:
    """An attribute that is patched.

    Attributes:
        original: What it was.
        inherited: Whether that was an attribute of a class of the owner's.
        wraps: What stands around it now, the innermost first.
        entered: How often each of these was entered and not left; by its identity.
    """

    original: Any
    inherited: bool
    wraps: list[Wrap] = field(default_factory=list)
    entered: dict[int, int] = field(default_factory=dict)

    def value(self) -> Any:
        """What stands in for it."""
        value = self.original
        for wrap in self.wraps:
            value = wrap(value)
        return value


_PATCHES: dict[tuple[int, str], _Patch] = {}
"""By the identity of the owner, which is held by whoever has entered, and the name."""


@contextmanager
def patched(point: Point, wrap: Wrap, *, of: Any = None) -> Iterator[None]:
    """Within it the function at `point` is `wrap` of what it was.

    It is so in all threads, from the first that enters with this `wrap` to the last that leaves: it
    stands there once. What others have put there stays, whoever leaves first.

    Args:
        point: The function.
        wrap: From the function to what stands in for it.
        of: An object of the class that has the function; its own method is patched, and no other
            object's.

    Raises:
        MissingNameError: If there is no such function any more.
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
            there = _Patch(original, inherited=name not in vars(owner))
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
