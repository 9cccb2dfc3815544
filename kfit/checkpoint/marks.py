"""Finds out by its weights which `fit` of the program one that begins is.

A program that is run again may skip by itself a `fit` that it has finished: for example, it finds
the saved model of its first phase, loads it, and calls `fit` for the second phase, which is then
the first `fit` of the process. So each `fit` leaves a mark in the directory: checksums of the
weights that it began with, and of those that it ended with.

- A `fit` that does not begin with the recorded weights of its own number, but with those of a later
  `fit`, is identified as that later one.
- A `fit` that begins with the weights that an earlier run ended a `fit` with is the one after it.
- Otherwise the number decides: the weights do not identify a `fit` if the program sets no seed, or
  if every `fit` begins with the same weights (cross-validation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MOST = 16
"""The number of marks that are kept. Older ones are dropped."""


class Mark(NamedTuple):
    """Checksums of the weights at the beginning and the end of a `fit`.

    Attributes:
        fit: The number of the `fit`, from 0.
        began: The checksum of the weights that it began with.
        ended: The checksum of the weights that it ended with; None if it has not finished.
    """

    fit: int
    began: int
    ended: int | None


Marks = tuple[Mark, ...]


def parse(found: Iterable[Any]) -> Marks:
    """Parses the marks in a lock file.

    Args:
        found: The parsed JSON value.

    Raises:
        ValueError: If an entry is not a valid mark.
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
    """Returns the marks after a `fit` has begun as a new one, without those of later `fit`s.

    Args:
        marks: The marks before.
        fit: The number of the `fit`.
        weights: The checksum of the weights that it begins with.
    """
    return (*(mark for mark in marks if mark.fit < fit), Mark(fit, weights, None))[-MOST:]


def ended(marks: Marks, fit: int, began: int, weights: int) -> Marks:
    """Returns the marks after a `fit` has ended, without those of later `fit`s.

    But if an earlier run ended this `fit` with the same weights, the marks of later ones are still
    valid, and all marks are returned unchanged.

    Args:
        marks: The marks before.
        fit: The number of the `fit`.
        began: The checksum of the weights that it began with; only used if it has no mark yet.
        weights: The checksum of the weights that it ended with.
    """
    own = next((mark for mark in marks if mark.fit == fit), Mark(fit, began, None))
    if own.ended == weights:
        return marks
    return (*(mark for mark in marks if mark.fit < fit), own._replace(ended=weights))[-MOST:]


def recognized(
    number: int, weights: int, marks: Marks, may_be: Callable[[int], bool | None]
) -> int | None:
    """Recognizes by its weights that a beginning `fit` is a later one of an earlier run.

    Args:
        number: The number of `fit`s that this process has finished.
        weights: The checksum of the weights that the `fit` begins with.
        marks: The marks of earlier runs.
        may_be: Returns whether the `fit` of a number had the same settings; None if unknown.

    Returns:
        The number of the later `fit`. None if the weights identify none, or the one of `number`.
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
        return None  # ambiguous: a `fit` whose mark was dropped may have had these weights, too
    return next((fit for fit in later if may_be(fit) is not False), None)


def is_cut_off_after(fit: int, marks: Sequence[Mark]) -> bool:
    """Returns whether an earlier run has begun a later `fit` than `fit` and not finished it.

    Args:
        fit: The number of this `fit`.
        marks: The marks of the `fit`s.
    """
    return any(mark.fit > fit and mark.ended is None for mark in marks)
