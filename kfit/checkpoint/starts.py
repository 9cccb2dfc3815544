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
from dataclasses import dataclass
from functools import cached_property
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
_NEXT_TURN = "it begins with another model"
_SEVERAL = "others of the program began in the same way"
_OTHER_LINES = "other lines of the program call it"
_CAUGHT = "the program has caught the error, and may go on with another one"


@dataclass
class _Candidates:
    """The `fit`s of this process that a beginning one may repeat, by what they have in common.

    Each list has their numbers in ascending order. It is made when it is first asked for, since
    `may_be` reads a snapshot.

    Attributes:
        start: What the beginning `fit` begins with.
        starts: As for `repeated`.
        may_be: As for `repeated`.
        following: As in `Interruption`.
    """

    start: Start
    starts: Mapping[int, Start]
    may_be: Callable[[int], bool | None]
    following: int | None

    @cached_property
    def called(self) -> list[int]:
        """Those that the same lines called, but none that this run has already repeated."""
        return [fit for fit in self._those(self._is_called_alike) if not self._is_done(fit)]

    @cached_property
    def alike(self) -> list[int]:
        """Those that began with the same weights after as many steps."""
        return self._those(self.start.begins_like)

    @cached_property
    def called_and_alike(self) -> list[int]:
        """Those of which both is true."""
        return [fit for fit in self.alike if fit in self.called]

    @cached_property
    def called_with_model(self) -> list[int]:
        """Those that the same lines called with the same model."""
        return [fit for fit in self.called if self.start.is_of_model_of(self.starts[fit])]

    @cached_property
    def of_model(self) -> list[int]:
        """Those that trained the same model."""
        return self._those(self.start.is_of_model_of)

    @cached_property
    def as_old(self) -> list[int]:
        """Those that began after as many steps."""
        return self._those(lambda begun: begun.steps == self.start.steps)

    @property
    def follows(self) -> bool:
        """Whether the same lines called the `fit` that would be called next."""
        fit = self.following
        if fit is None or not self._is_called_alike(self.starts[fit]):
            return False
        return self.may_be(fit) is not False

    def _is_called_alike(self, begun: Start) -> bool:
        return begun.calls == self.start.calls

    def _is_done(self, fit: int) -> bool:
        is_earlier = self.following is not None and fit < self.following
        return is_earlier and self.starts[fit].run == self.start.run

    def _those(self, have: Callable[[Start], bool]) -> list[int]:
        return [
            fit
            for fit, begun in self.starts.items()
            if have(begun) and self.may_be(fit) is not False
        ]

    def first(self, fits: list[int]) -> int:
        """Returns the first of some `fit`s that were called when the last of them was.

        If it is known which `fit` would be called next, the first one from there on is taken, if
        there is any.
        """
        if self.following is not None and fits[-1] >= self.following:
            return next(fit for fit in fits if fit >= self.following)
        first = last = fits[-1]
        for fit in range(last - 1, -1, -1):
            if fit not in self.starts or self.starts[fit].first_run != self.starts[last].first_run:
                break
            first = fit if fit in fits else first
        return first


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
    found = _Candidates(start, starts, may_be, following)
    if following is not None and found.follows:
        return Repeat(following)
    if last is None:  # a `fit` is only known to be repeated if its lines are run again
        runs = {fit: starts[fit].run for fit in found.called if starts[fit].run != start.run}
        again = [fit for fit, run in runs.items() if run == interrupted.run or fit in found.alike]
        return Repeat(found.first(again)) if again else None
    is_other = not start.is_of_model_of(interrupted)
    is_younger = is_other and start.steps < interrupted.steps
    if following is None and interrupted.is_called_by_what_runs(start):
        is_turn = is_other and (interruption.by_callback or start.weights is None)
        return _after_caught(found, last, is_turn=is_turn, is_younger=is_younger)
    if found.called_and_alike:
        return Repeat(found.first(found.called_and_alike))
    if found.called:
        unlike = _SEVERAL if found.alike and following is None else None
        return Repeat(found.first(found.called_with_model or found.called), unlike)
    if found.alike:
        return Repeat(found.first(found.alike), _SEVERAL if len(found.alike) > 1 else None)
    if is_other and found.of_model:
        return Repeat(found.first(found.of_model), _OTHER_LINES)
    if is_younger and found.as_old:
        return Repeat(found.first(found.as_old))
    if is_other and may_be(last) is False and found.as_old:
        return Repeat(found.first(found.as_old), _OTHER_LINES)
    expected = last if following is None else following
    doubt = _OTHER_MODEL if _is_another(start, starts[expected]) else None
    if following is None and _was_in_loop(interrupted, starts):
        doubt = doubt or _OTHER_LINES
    return Repeat(expected, doubt)


def _after_caught(found: _Candidates, last: int, *, is_turn: bool, is_younger: bool) -> Repeat:
    """Returns which `fit` is repeated in a program that has caught the error of another one.

    The program may try the interrupted `fit` again, or several from an earlier one on; or it may go
    on, as a loop does with its next turn.

    Args:
        found: The `fit`s that may be repeated.
        last: The number of the interrupted `fit`.
        is_turn: Whether the beginning one may be the next turn of a loop, though it begins in the
            same way as the interrupted one.
        is_younger: Whether another model begins, which has taken fewer steps than that of the
            interrupted `fit` had when that began.
    """
    start, interrupted = found.start, found.starts[last]
    if found.called and start.calls != interrupted.calls:
        fits = found.called_and_alike or found.called_with_model or found.called
        return Repeat(fits[-1], None if len(found.called_and_alike) == 1 else _CAUGHT)
    is_one = len(found.alike) == 1
    if last in found.alike:
        return Repeat(last, _NEXT_TURN if is_turn else None if is_one else _SEVERAL)
    if found.alike:
        return Repeat(found.alike[-1], None if is_one else _CAUGHT)
    if is_younger and found.as_old:
        return Repeat(found.first(found.as_old))
    return Repeat(last, _OTHER_MODEL if _is_another(start, interrupted) else None)


def _is_another(start: Start, begun: Start) -> bool:
    """Returns whether two `fit`s are known to begin with other models and other weights."""
    is_known = None not in (start.weights, begun.weights)
    return is_known and not start.is_of_model_of(begun) and start.weights != begun.weights


def _was_in_loop(begun: Start, starts: Mapping[int, Start]) -> bool:
    """Returns whether one run of the program has called several `fit`s where it called this one."""
    same = [each for each in starts.values() if each.calls == begun.calls]
    return sum(each.first_run == begun.first_run for each in same) > 1
