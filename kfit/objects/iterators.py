"""Tells how far iterators have been drawn from, and draws from them up to such a position.

The iterators of Python's containers and ranges, `itertools.count`, `cycle` and `repeat`, and
generator expressions over these tell their position. A program that is started again makes them
anew, so drawing up to the position of a snapshot restores them. Other iterators, such as generator
functions, cannot be restored; for them `trace_of` tells whether they have been drawn from.
"""

from __future__ import annotations

import ast
import dis
import itertools
import queue
from collections import deque
from functools import lru_cache
from types import CodeType, GeneratorType
from typing import Any

from kfit.objects.values import fingerprint, is_exact, size_of

_NONE: dict[int, int] = {}
_ITERATED: tuple[Any, ...] = ([], (), "", "é", b"", bytearray(), set(), deque(), range(1))
_VIEWS: tuple[Any, ...] = (_NONE, _NONE.values(), _NONE.items())
_SIZED: frozenset[type] = frozenset(
    {
        *(type(iter(each)) for each in (*_ITERATED, *_VIEWS, range(1 << 70))),
        *(type(reversed(each)) for each in ([], (), deque(), *_VIEWS)),
        itertools.repeat,
    }
)
"""Iterators that tell by `__length_hint__` how many items are left."""
_ENDLESS = "endless"
_ENDED = "ended"
_MOST = 1 << 14
"""Bytes of the largest local variable of a generator that is compared by its content."""
_LONGEST_CYCLE, _FARTHEST = 1 << 20, 1 << 27
"""The most items of a cycle, and the most items to draw from a count, to come to a position: it is
read from a file, and may be any number. Drawing so many takes seconds."""
_UNKNOWN = itertools.count()


def is_iterator(value: Any) -> bool:
    """Returns whether a value is an iterator, from which items are drawn one by one."""
    kind = type(value)
    return hasattr(kind, "__next__") and hasattr(kind, "__iter__")


def position_of(value: Any) -> Any:
    """Returns how far an iterator has been drawn from; None for other values.

    Returns:
        A plain value. It is also None for iterators that cannot be restored to a position.
    """
    kind = type(value)
    if kind in _SIZED:
        return _left(value)
    if kind is itertools.count:
        return _number(value)
    if kind is itertools.cycle:
        return _place_in_cycle(value)
    if kind is GeneratorType and _is_one_loop(value.gi_code):
        if value.gi_frame is None:
            return _ENDED
        return position_of(value.gi_frame.f_locals.get(".0"))
    return None


def advance(value: Any, position: Any) -> None:
    """Draws from an iterator until it is at a position that `position_of` has returned.

    Raises:
        ValueError: If the iterator is already behind this position, is too far from it, or never
            comes to it.
        TypeError: If it is no position of such an iterator.
    """
    if position == position_of(value):
        return
    kind = type(value)
    if kind is GeneratorType:
        if position == _ENDED:
            value.close()
        elif value.gi_frame is not None:
            advance(value.gi_frame.f_locals.get(".0"), position)
    elif kind is itertools.cycle:
        kept, _ = position
        if not isinstance(kept, int) or not 0 <= kept <= _LONGEST_CYCLE:
            raise ValueError(f"{position!r} is too far for a cycle")
        for _ in range(2 * kept + 1):
            if position == position_of(value):
                return
            next(value)
    else:
        deque(itertools.islice(value, max(_distance(value, position), 0)), maxlen=0)
    if position != position_of(value):
        raise ValueError(f"the {kind.__name__} is not at {position!r}")


def trace_of(value: Any) -> Any:
    """Returns a mark of an iterator or queue that differs once an item has been drawn from it.

    The mark of a generator is where its code has come to, with its local variables. If nothing
    tells whether an iterator was drawn from, the mark is another one in each call, since it has to
    be assumed. For all other values the mark is None.
    """
    if isinstance(value, queue.SimpleQueue):
        return value.qsize()
    if not is_iterator(value):
        return None
    position = position_of(value)
    if position is not None:
        return fingerprint(position)
    is_generator = isinstance(value, GeneratorType)
    return _trace_of_generator(value) if is_generator else _trace_by_parts(value)


def _left(value: Any) -> Any:
    try:
        return value.__length_hint__()
    except TypeError:  # a `repeat` without end
        return _ENDLESS


def _number(value: itertools.count[Any]) -> Any:
    """Returns the next number and the step of a count, which only its `repr` tells."""
    try:
        numbers = ast.literal_eval(f"({repr(value)[len('count(') : -1]},)")
    except (ValueError, SyntaxError):  # of another kind of number, such as a fraction
        return None
    return (*numbers, 1)[:2]


def _place_in_cycle(value: Any) -> Any:
    """Returns the number of items that a cycle has kept, and how many are left of its pass.

    The second number is -1 in the first pass.
    """
    try:
        _, (inner,), (kept, is_later) = value.__reduce__()
    except (TypeError, ValueError, DeprecationWarning):  # removed in Python 3.14
        return None
    return (len(kept), _left(inner) if is_later else -1)


@lru_cache(maxsize=1024)
def _is_one_loop(code: CodeType) -> bool:
    """Returns whether code is that of a generator expression with one `for`."""
    loops = [step for step in dis.get_instructions(code) if step.opname == "FOR_ITER"]
    return code.co_name == "<genexpr>" and len(loops) == 1


def _distance(value: Any, position: Any) -> int:
    """Returns how many items are to be drawn from an iterator to come to a position."""
    here = position_of(value)
    if type(value) is itertools.count:
        (start, step), (target, _) = here, position
        distance = (target - start) / step if step else 0
        if not abs(distance) <= _FARTHEST:  # also if it is no number
            raise ValueError(f"{position!r} is too far from {here!r}")
        return round(distance)
    return here - position if isinstance(here, int) and isinstance(position, int) else 0


def _trace_of_generator(value: GeneratorType[Any, Any, Any]) -> Any:
    frame = value.gi_frame
    if frame is None:
        return _ENDED
    held = [(name, _trace_of_local(local)) for name, local in list(frame.f_locals.items())]
    return (frame.f_lasti, *held)


def _trace_of_local(value: Any) -> Any:
    if is_exact(value) and size_of(value) <= _MOST:
        return fingerprint(value)
    position = position_of(value)
    return id(value) if position is None else fingerprint(position)


def _trace_by_parts(value: Any) -> Any:
    """Returns a mark of an iterator that is made of others, such as a `zip`, by their positions."""
    if type(value).__module__ not in ("builtins", "itertools"):
        return next(_UNKNOWN)
    try:
        _, args, *state = value.__reduce__()
    except (TypeError, ValueError, DeprecationWarning):
        return next(_UNKNOWN)
    parts = (*args, *state)
    if not any(map(is_iterator, parts)):
        return next(_UNKNOWN)
    return tuple(trace_of(part) if is_iterator(part) else _trace_of_local(part) for part in parts)
