"""Finds out which `fit` of its program a process repeats after one was interrupted.

Three things may happen after an interruption. The program calls the interrupted `fit` again, as in
a cell of a notebook that is run again. The whole program is run again, as by "Run All", so that its
first `fit` comes again. Or the program has caught the error, and tries again or goes on. What a
`fit` begins with, and the code that is running, show what has happened.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, NamedTuple


class Start(NamedTuple):
    """What a `fit` begins with; it tells a repeated `fit` of this process from others.

    Attributes:
        weights: The checksum of the weights; None if the model has no weights yet.
        steps: The steps that the optimizers of the model have taken.
        model: The model, if it still exists.
        code: The code of the script, or of the cell of a notebook, that is running. A cell that is
            run again is compiled again, so its code is another object. None if there is none.
    """

    weights: int | None
    steps: int
    model: weakref.ref[Any]
    code: CodeType | None

    def begins_like(self, other: Start) -> bool:
        """Returns whether both begin with the same weights after as many steps."""
        return (self.weights, self.steps) == (other.weights, other.steps)


class Repeat(NamedTuple):
    """The `fit` that is repeated.

    Attributes:
        fit: Its number in the program, from 0.
        doubt: Why it may be another one, as a clause; None if it is certain.
    """

    fit: int
    doubt: str | None = None


def repeated(
    start: Start, starts: Mapping[int, Start], may_be: Callable[[int], bool | None]
) -> Repeat:
    """Returns which `fit` is repeated by one that begins after an interrupted `fit`.

    Only `fit`s with the settings of the beginning one can be repeated. Of these it is the one that
    began with the same weights after as many steps. If there are several, as in cross-validation:

    - The program has caught the error if the code that called the interrupted `fit` still runs.
      Then it is the interrupted one.
    - Else that code begins again, and it is the first of those `fit`s which the code called.

    If there is none, and another model begins, which has taken fewer steps than the model of the
    interrupted `fit` had when that began, it is one that began after as many steps. Else it is the
    interrupted one: its model has the weights of the interruption, or was made anew without a seed.

    Args:
        start: What the beginning `fit` begins with.
        starts: What the `fit`s of this process began with, by their numbers; the last one is the
            interrupted one.
        may_be: A function that gets the number of a `fit`, and returns whether that `fit` had the
            same settings as the beginning one; None if this is unknown.
    """
    last = max(starts)
    interrupted = starts[last]
    is_caught = start.code is interrupted.code
    alike = [fit for fit, begun in starts.items() if start.begins_like(begun)]
    alike = [fit for fit in alike if may_be(fit) is not False]
    if last in alike and is_caught:
        others = len(alike) > 1
        return Repeat(last, "others of the program began with the same weights" if others else None)
    if alike:
        return Repeat(_first_of_the_last_run(alike, starts))
    if start.model() is interrupted.model():
        return Repeat(last)
    if start.steps < interrupted.steps or may_be(last) is False:
        alike = [fit for fit, begun in starts.items() if begun.steps == start.steps]
        alike = [fit for fit in alike if may_be(fit) is not False]
        if alike:
            return Repeat(_first_of_the_last_run(alike, starts))
    is_known = None not in (start.weights, interrupted.weights)
    return Repeat(
        last, "it begins with another model and other weights" if is_caught and is_known else None
    )


def _first_of_the_last_run(fits: list[int], starts: Mapping[int, Start]) -> int:
    """Returns the first of the last `fit`s that follow each other and were called by one code.

    A program may have been run several times before it was interrupted, each time with several
    `fit`s that begin alike.
    """
    first = fits[-1]
    for fit in reversed(fits[:-1]):
        if fit != first - 1 or starts[fit].code is not starts[first].code:
            break
        first = fit
    return first
