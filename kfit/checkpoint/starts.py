"""Finds out which `fit` of its program a process repeats after one was interrupted.

Three things may happen after an interruption. The program calls the interrupted `fit` again, as in
a cell of a notebook that is run again. An earlier part of the program is run again, as by "Run
All", so that an earlier `fit` comes again. Or the program has caught the error, and tries again or
goes on. What a `fit` begins with, and the lines that call it, show what has happened.
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
        lines: The lines of the program that have led to the call, each with its code. Code that is
            compiled again, as that of a cell, is equal if its text is.
        run: What tells one run of the program, or of a cell, from another.
    """

    weights: int | None
    steps: int
    model: weakref.ref[Any]
    lines: tuple[tuple[CodeType, int], ...]
    run: Any

    def is_called_by_what_runs(self, now: Start) -> bool:
        """Returns whether the code that called this `fit` still runs when another one begins."""
        if self.run != now.run or not self.lines or not now.lines:
            return self.run == now.run and self.lines == now.lines
        return self.lines[-1][0] is now.lines[-1][0]

    def goes_on_from(self, other: Start | None) -> bool:
        """Returns whether the same model has taken steps since another `fit` began."""
        return other is not None and self.model() is other.model() and self.steps > other.steps

    def begins_like(self, other: Start) -> bool:
        """Returns whether both begin with the same weights after as many steps."""
        return (self.weights, self.steps) == (other.weights, other.steps)


class Repeat(NamedTuple):
    """The `fit` that is repeated.

    Attributes:
        fit: Its number in the program, from 0.
        doubt: Why it may be another one, as a clause; None if there is no sign of it.
    """

    fit: int
    doubt: str | None = None


def repeated(
    start: Start, starts: Mapping[int, Start], may_be: Callable[[int], bool | None]
) -> Repeat:
    """Returns which `fit` is repeated by one that begins after an interrupted `fit`.

    Only `fit`s with the settings of the beginning one can be repeated. Of these it is one that

    - began with the same weights after as many steps, and was called by the same lines; else
    - began with the same weights after as many steps; else
    - was called by the same lines, in another run of them, and trained the same model; else
    - was called by the same lines, in another run of them; else
    - began after as many steps, if another model begins, which has taken fewer steps than the model
      of the interrupted `fit` had when that began.

    If there is none, it is the interrupted one: its model has the weights of the interruption, or
    was made anew without a seed. If there are several, as in a loop, it is the interrupted one if
    the program has caught its error: then the code that called it still runs. Else it is the first
    one that the code called when it was last run.

    Args:
        start: What the beginning `fit` begins with.
        starts: What the `fit`s of this process began with, by their numbers; the last one is the
            interrupted one.
        may_be: A function that gets the number of a `fit`, and returns whether that `fit` had the
            same settings as the beginning one; None if this is unknown.
    """
    last = max(starts)
    interrupted = starts[last]
    is_caught = interrupted.is_called_by_what_runs(start)
    is_another = start.model() is not interrupted.model()
    is_younger = is_another and (start.steps < interrupted.steps or may_be(last) is False)
    alike = [fit for fit, begun in starts.items() if start.begins_like(begun)]
    called = [fit for fit, begun in starts.items() if start.lines == begun.lines]
    called_again = [] if is_caught else called
    of_model = [fit for fit in called_again if starts[fit].model() is start.model()]
    as_old = [fit for fit, begun in starts.items() if begun.steps == start.steps]
    ways = (
        [fit for fit in alike if fit in called],
        alike,
        of_model,
        called_again,
        as_old if is_younger else [],
    )
    for way in ways:
        found = [fit for fit in way if may_be(fit) is not False]
        if last in found and is_caught:
            is_one = len(found) == 1
            return Repeat(last, None if is_one else "others of the program began in the same way")
        if found:
            return Repeat(_first_of_the_last_run(found, starts, is_caught=is_caught))
    is_known = is_another and None not in (start.weights, interrupted.weights)
    doubt = "it begins with another model and other weights" if is_caught and is_known else None
    return Repeat(last, doubt)


def _first_of_the_last_run(fits: list[int], starts: Mapping[int, Start], *, is_caught: bool) -> int:
    """Returns the first of some `fit`s that were called in the run in which the last of them was.

    Args:
        fits: The numbers of the `fit`s, in ascending order.
        starts: What the `fit`s of this process began with, by their numbers.
        is_caught: Whether the code that called the interrupted `fit` still runs. Then it may have
            called all of them several times, and only those count that the same lines called, one
            after the other.
    """
    first = last = fits[-1]
    for fit in range(last - 1, -1, -1):
        begun = starts.get(fit)
        if begun is None or begun.run != starts[last].run:
            break
        if is_caught and begun.lines != starts[last].lines:
            break
        first = fit if fit in fits else first
    return first
