"""Recognizes a `fit` by its weights, when a program that was interrupted is run again.

A process numbers its `fit`s from 0. But a program that is run again may skip by itself a `fit` that
it has finished. For example, it finds the saved model of its first phase, loads the model, and
calls `fit` only for the second phase. The process would give this `fit` the number 0, although it
is number 1 of the program. So each `fit` leaves a mark in the directory of snapshots: the checksums
of the weights that it began with and of the weights that it ended with.

When a `fit` begins, its weights are compared with the marks that an earlier run has left. Let n be
the number that the process gives to the `fit`:

- If `fit` n of the earlier run began with these weights, n is right.
- Otherwise the number is the smallest m above n that meets two conditions: `fit` m of the earlier
  run began with these weights, or `fit` m - 1 ended with them; and as far as the settings of
  `fit` m are known, they are the same.
- If there is no such m, or if there are several and the mark of `fit` n is missing, n is kept.

Weights do not identify a `fit` if the program sets no seed, or if every `fit` begins with the same
weights (cross-validation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

MOST = 16
"""The number of marks that are kept. Older ones are dropped."""


class Mark(NamedTuple):
    """Checksums of the weights of a `fit`, by which a later run recognizes this `fit`.

    Attributes:
        fit: The number of the `fit` in the program, from 0.
        began: The checksum of the weights that the `fit` began with.
        ended: The checksum of the weights that the `fit` ended with; None if it has not finished.
    """

    fit: int
    began: int
    ended: int | None


Marks = tuple[Mark, ...]


def parse(found: Iterable[Any]) -> Marks:
    """Parses the marks in a lock file; each mark has the checksums of the weights of a `fit`.

    Args:
        found: The marks as parsed from JSON: each should be a list of three values.

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
    """Adds a mark for a `fit` that has begun, and leaves out the marks of later `fit`s.

    A mark has the checksums of the weights of a `fit`. Marks of later `fit`s are of an earlier run,
    and no longer valid.

    Args:
        marks: The marks so far.
        fit: The number of the `fit` in the program.
        weights: The checksum of the weights that the `fit` begins with.

    Returns:
        The new marks.
    """
    return (*(mark for mark in marks if mark.fit < fit), Mark(fit, weights, None))[-MOST:]


def ended(marks: Marks, fit: int, began: int, weights: int) -> Marks:
    """Returns the marks after a `fit` has ended, usually without the marks of later `fit`s.

    A mark has the checksums of the weights of a `fit`. Marks of later `fit`s are of an earlier run.
    They are still valid if that run ended this `fit` with the same weights; then all marks are
    returned unchanged.

    Args:
        marks: The marks so far.
        fit: The number of the `fit` in the program.
        began: The checksum of the weights that the `fit` began with; only used if it has no mark
            yet.
        weights: The checksum of the weights that the `fit` ended with.
    """
    own = next((mark for mark in marks if mark.fit == fit), Mark(fit, began, None))
    if own.ended == weights:
        return marks
    return (*(mark for mark in marks if mark.fit < fit), own._replace(ended=weights))[-MOST:]


def recognized(
    number: int, weights: int, marks: Marks, may_be: Callable[[int], bool | None]
) -> int | None:
    """Recognizes by the weights that a beginning `fit` is a later `fit` of an earlier run.

    Used when a program is run again. The program may skip finished `fit`s by itself, so that the
    number which the process counts is too small.

    Args:
        number: The number that the process counts: how many `fit`s it has finished.
        weights: The checksum of the weights that the `fit` begins with.
        marks: The marks of earlier runs: checksums of the weights of each `fit`.
        may_be: A function that gets the number of an earlier run's `fit`, and returns whether that
            `fit` had the same settings as the beginning `fit`; None if this is unknown.

    Returns:
        The number of the later `fit`. None if the weights identify no later `fit`, so that `number`
        is right.
    """
    of_number = {mark.fit: mark for mark in marks}
    if number in of_number and of_number[number].began == weights:
        return None
    began = {mark.fit for mark in marks if mark.began == weights}
    follow = {mark.fit + 1 for mark in marks if mark.ended == weights}
    later = sorted(fit for fit in began | follow if fit > number)
    if number not in of_number and len(later) > 1:
        return None  # ambiguous: a `fit` whose mark was dropped may have had these weights, too
    return next((fit for fit in later if may_be(fit) is not False), None)


def is_cut_off_after(fit: int, marks: Sequence[Mark]) -> bool:
    """Returns whether an earlier run has begun, but not finished, a `fit` that is later than `fit`.

    Args:
        fit: The number of this `fit` in the program.
        marks: The marks of the `fit`s, which tell whether each has finished.
    """
    return any(mark.fit > fit and mark.ended is None for mark in marks)
