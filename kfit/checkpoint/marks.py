"""Which `fit` of a program one is that begins: the weights that it begins with may tell.

A program that is run again may leave out by itself what it has done: it finds the model's file of
its first phase, loads it, and calls `fit` for the second one, which is then the first of its
process. So each `fit` leaves a mark in the directory when it begins and when it has ended: a
checksum of its weights then. One that begins with the weights that a later `fit` began with, and
not with those of its own number, is that later one; with those that the last one ended with, it is
the next. Where the weights tell nothing, because a program without a seed has made others, or all
begin with the same (cross-validation), the number does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MOST = 16
"""How many marks are kept, the last ones."""


class Mark(NamedTuple):
    """Between which weights a `fit` lay.

    Attributes:
        fit: The number of the `fit`, from 0.
        began: The checksum of the weights that it began with.
        ended: That of those it ended with; None where it was cut off.
    """

    fit: int
    began: int
    ended: int | None


Marks = tuple[Mark, ...]


def parse(found: Iterable[Any]) -> Marks:
    """The marks that a file holds.

    Raises:
        ValueError: If they are none.
    """
    marks = []
    for entry in found:
        if not isinstance(entry, list) or len(entry) != 3:
            raise ValueError(f"{entry!r} is no mark of a fit")
        numbers = entry if entry[2] is not None else entry[:2]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError(f"{entry!r} is no mark of a fit")
        marks.append(Mark(*entry))
    return tuple(marks)


def begun(marks: Marks, fit: int, weights: int) -> Marks:
    """The marks when a `fit` begins anew: those of later ones are of no more use."""
    return (*(mark for mark in marks if mark.fit < fit), Mark(fit, weights, None))[-MOST:]


def ended(marks: Marks, fit: int, began: int, weights: int) -> Marks:
    """The marks when a `fit` has ended; later ones stay if it has ended as it did before."""
    own = next((mark for mark in marks if mark.fit == fit), Mark(fit, began, None))
    if own.ended == weights:
        return marks
    return (*(mark for mark in marks if mark.fit < fit), own._replace(ended=weights))[-MOST:]


def recognized(
    number: int, weights: int, marks: Marks, may_be: Callable[[int], bool | None]
) -> int | None:
    """The later `fit` that one is by the weights that it begins with.

    Args:
        number: How many `fit`s the process has come through.
        weights: The checksum of the weights.
        marks: What the `fit`s of earlier runs have left.
        may_be: Whether a `fit`'s settings are those of this one; None where nobody knows.

    Returns:
        Its number, or None where the weights do not tell, or tell that it is the one of `number`.
    """
    of_number = {mark.fit: mark for mark in marks}
    if number in of_number and of_number[number].began == weights:
        return None
    last = max(of_number, default=number)
    later = [
        fit
        for fit in range(number + 1, last + 2)
        if (fit in of_number and of_number[fit].began == weights)
        or (fit - 1 in of_number and of_number[fit - 1].ended == weights)
    ]
    if number not in of_number and len(later) > 1:
        return None  # those that are not known any more may have begun with the same
    return next((fit for fit in later if may_be(fit) is not False), None)


def is_cut_off_after(fit: int, marks: Sequence[Mark]) -> bool:
    """Whether a later `fit` was begun, and never ended."""
    return any(mark.fit > fit and mark.ended is None for mark in marks)
