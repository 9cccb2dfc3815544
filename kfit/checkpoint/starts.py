"""Finds out which `fit` of its program a process repeats after one was interrupted.

Three things may happen after an interruption. The program calls the interrupted `fit` again, as in
a cell of a notebook that is run again. An earlier part of the program is run again, as by "Run
All", so that an earlier `fit` comes again. Or the program has caught the error, and tries again or
goes on. What a `fit` begins with, and the calls that lead to it, show what has happened. Where they
leave it open, as in a cell that was edited meanwhile, the user is warned.
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
        calls: The calls in the program that have led to the `fit`, the innermost first: code, and
            the instruction in it. Code that is compiled again, as that of a cell, is equal if its
            text is.
        run: What tells one run of the program, or of a cell, from another.
        first_run: The run that called the `fit` first, if it is a repeated one; otherwise `run`.
    """

    weights: int | None
    steps: int
    model: weakref.ref[Any]
    calls: tuple[tuple[CodeType, int], ...]
    run: Any
    first_run: Any

    def again(self, first: Start) -> Start:
        """Returns the record of a repeated `fit`: as it began first, but as it is called now."""
        return self._replace(weights=first.weights, steps=first.steps, first_run=first.first_run)

    def is_called_by_what_runs(self, now: Start) -> bool:
        """Returns whether the code that called this `fit` still runs when another one begins."""
        if self.run != now.run or not self.calls or not now.calls:
            return self.run == now.run and self.calls == now.calls
        return self.calls[-1][0] is now.calls[-1][0]

    def is_of_model_of(self, other: Start) -> bool:
        """Returns whether both `fit`s train the same object, a model that still exists."""
        model = self.model()
        return model is not None and model is other.model()

    def goes_on_from(self, other: Start | None) -> bool:
        """Returns whether the same model has been trained since another `fit` began.

        It may have got a new optimizer, which has taken no steps, so the weights count, too.
        """
        return other is not None and self.is_of_model_of(other) and not self.begins_like(other)

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


class Interruption(NamedTuple):
    """An interrupted `fit`, and what has followed it.

    Attributes:
        start: What the `fit` began with.
        fit: Its number in the program; None if its snapshots are in another directory.
        by_callback: Whether a callback such as `TimeLimit` has interrupted it.
        following: The number of the `fit` that would be called next, if an earlier one was
            repeated since then and came to its end; otherwise None.
    """

    start: Start
    fit: int | None
    by_callback: bool
    following: int | None


_OTHER_MODEL = "it begins with another model and other weights"
_SEVERAL = "others of the program began in the same way"
_OTHER_LINES = "other lines of the program call it"
_CAUGHT = "the program has caught the error, and may go on with another one"


def repeated(
    start: Start,
    starts: Mapping[int, Start],
    may_be: Callable[[int], bool | None],
    interruption: Interruption,
) -> Repeat | None:
    """Returns which `fit` of this process is repeated by one that begins after an interruption.

    Only `fit`s with the settings of the beginning one can be repeated. If the same lines called the
    one that would be called next, it is that one. Otherwise it is one that

    - was called by the same lines, and began with the same weights after as many steps; else
    - was called by the same lines, and trained the same model; else
    - was called by the same lines; else
    - began with the same weights after as many steps; else
    - trained the same model, if that is not the interrupted one; else
    - began after as many steps, if another model begins, which has taken fewer steps than the model
      of the interrupted `fit` had when that began.

    If there are several, it is the first one that was called when their lines were last run. If
    there is none, it is the one that would be called next, or else the interrupted one: its model
    has the weights of the interruption, or was made anew without a seed.

    All this is otherwise if the program has caught the error, so that the code which called the
    interrupted `fit` still runs (`_after_caught`).

    Args:
        start: What the beginning `fit` begins with.
        starts: What the `fit`s of this process with the same directory of snapshots began with, by
            their numbers in the program.
        may_be: A function that gets the number of a `fit`, and returns whether that `fit` had the
            same settings as the beginning one; None if this is unknown.
        interruption: The interrupted `fit`.

    Returns:
        The repeated `fit`; None if none is repeated, because the directory is not that of the
        interrupted one.
    """
    interrupted, last, following = interruption.start, interruption.fit, interruption.following

    def those(have: Callable[[Start], bool]) -> list[int]:
        return [fit for fit, begun in starts.items() if have(begun) and may_be(fit) is not False]

    def is_done(fit: int) -> bool:
        return following is not None and fit < following and starts[fit].run == start.run

    called = [fit for fit in those(lambda begun: begun.calls == start.calls) if not is_done(fit)]
    alike = those(start.begins_like)
    if following is not None and following in called:
        return Repeat(following)
    if last is None:  # a `fit` is only known to be repeated if its lines are run again
        runs = {fit: starts[fit].run for fit in called if starts[fit].run != start.run}
        again = [fit for fit, run in runs.items() if fit in alike or run == interrupted.run]
        return Repeat(_first(again, starts, following)) if again else None
    both = [fit for fit in alike if fit in called]
    is_other = not start.is_of_model_of(interrupted)
    as_old = those(lambda begun: begun.steps == start.steps)
    younger = as_old if is_other and start.steps < interrupted.steps else []
    if following is None and interrupted.is_called_by_what_runs(start):
        is_turn = interruption.by_callback or start.weights is None
        doubt = "it begins with another model" if is_turn and is_other else None
        return _after_caught(start, starts, last, doubt, called, alike, younger)
    of_model = those(start.is_of_model_of)
    has_other_settings = is_other and may_be(last) is False
    unlike = _SEVERAL if alike and following is None else None
    ways = (
        (both, None),
        ([fit for fit in called if fit in of_model], unlike),
        (called, unlike),
        (alike, _SEVERAL if len(alike) > 1 else None),
        (of_model if is_other else [], _OTHER_LINES),
        (younger, None),
        (as_old if has_other_settings else [], _OTHER_LINES),
    )
    for found, doubt in ways:
        if found:
            return Repeat(_first(found, starts, following), doubt)
    expected = last if following is None else following
    doubt = _OTHER_MODEL if _is_another(start, starts[expected]) else None
    if following is None and _was_in_loop(interrupted, starts):
        doubt = doubt or _OTHER_LINES
    return Repeat(expected, doubt)


def _after_caught(
    start: Start,
    starts: Mapping[int, Start],
    last: int,
    doubt: str | None,
    called: list[int],
    alike: list[int],
    younger: list[int],
) -> Repeat:
    """Returns which `fit` is repeated in a program that has caught the error of another one.

    The program may try the interrupted `fit` again, or several from an earlier one on; or it may go
    on, as a loop does with its next turn.

    Args:
        start: What the beginning `fit` begins with.
        starts: What the `fit`s of this process began with, by their numbers.
        last: The number of the interrupted `fit`.
        doubt: Why it may be another one, though it began in the same way; None if there is no sign
            of it.
        called: The numbers of the `fit`s that the same lines called.
        alike: The numbers of the `fit`s that began with the same weights after as many steps.
        younger: The numbers of the `fit`s that began after as many steps, if another model begins,
            which has taken fewer steps than that of the interrupted `fit` had when that began.
    """
    if called and start.calls != starts[last].calls:
        both = [fit for fit in alike if fit in called]
        of_model = [fit for fit in called if start.is_of_model_of(starts[fit])]
        found = both or of_model or called
        return Repeat(found[-1], None if len(both) == 1 else _CAUGHT)
    if last in alike:
        return Repeat(last, doubt or (_SEVERAL if len(alike) > 1 else None))
    if alike:
        return Repeat(alike[-1], None if len(alike) == 1 else _CAUGHT)
    if younger:
        return Repeat(_first(younger, starts, None))
    return Repeat(last, _OTHER_MODEL if _is_another(start, starts[last]) else None)


def _is_another(start: Start, begun: Start) -> bool:
    """Returns whether two `fit`s are known to begin with other models and other weights."""
    is_known = None not in (start.weights, begun.weights)
    return is_known and not start.is_of_model_of(begun) and start.weights != begun.weights


def _was_in_loop(begun: Start, starts: Mapping[int, Start]) -> bool:
    """Returns whether one run of the program has called several `fit`s where it called this one."""
    same = [each for each in starts.values() if each.calls == begun.calls]
    return sum(each.first_run == begun.first_run for each in same) > 1


def _first(fits: list[int], starts: Mapping[int, Start], following: int | None) -> int:
    """Returns the first of some `fit`s that were called when the last of them was.

    Args:
        fits: The numbers of the `fit`s, in ascending order.
        starts: What the `fit`s of this process began with, by their numbers.
        following: The number of the `fit` that would be called next. If it is known, the first one
            from there on is taken, if there is any.
    """
    if following is not None and fits[-1] >= following:
        return next(fit for fit in fits if fit >= following)
    first = last = fits[-1]
    for fit in range(last - 1, -1, -1):
        if fit not in starts or starts[fit].first_run != starts[last].first_run:
            break
        first = fit if fit in fits else first
    return first
