"""Which `fit` of a program a snapshot belongs to, and which snapshot a new `fit` resumes from.

A program may call `fit` several times with one directory of snapshots. Each snapshot contains the
number of its `fit`, which the process counts from 0, and whether this `fit` was finished. So a
program that is killed at any point and run again finds what it has already done. Each finished
`fit` restores its final state, the interrupted `fit` is resumed, and later `fit`s begin as new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from kfit.checkpoint.starts import Interruption, Repeat, Start, repeated
from kfit.checkpoint.store import SnapshotName


class Label(NamedTuple):
    """The label of a snapshot, which says in which `fit` of the program the snapshot was taken.

    Attributes:
        fit: The number of the `fit` in the program, from 0.
        finished: Whether the snapshot was taken after the last step of the `fit`.
    """

    fit: int
    finished: bool

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Label:
        """Reads the label from the description of a snapshot (`Snapshot.about`)."""
        fit = about.get("fit")  # of any type, if a stranger has written the snapshot
        return cls(fit if type(fit) is int else 0, about.get("finished") is True)


_LEAST, _MOST, _ROOM = 3, 100, 1 << 30
"""The final snapshots of finished `fit`s that are kept: at least this many and at most this many,
between these limits as many as take up to this many bytes in total."""

Labels = Sequence[tuple[SnapshotName, Label | None]]
"""The snapshots of a directory, the oldest first; the label is None if it cannot be read."""


class Beginning(NamedTuple):
    """The snapshots that a beginning `fit` can resume from.

    Attributes:
        kind: "new" if there is no snapshot to resume from. "same" if the snapshots are of this
            `fit`, which an earlier run has interrupted or finished. "passed" if the snapshots are
            of a later `fit`: an earlier run has finished this `fit`, but the final snapshot of this
            `fit` has been deleted.
        names: The names of the snapshots, the best first. If a snapshot is damaged, the next one is
            used.
    """

    kind: Literal["new", "same", "passed"]
    names: list[SnapshotName]


def beginning_of(fit: int, labels: Labels) -> Beginning:
    """Returns the snapshots that a beginning `fit` can resume from, if there are any.

    The newest snapshot shows how far an earlier run of the program has come. A snapshot whose label
    cannot be read is treated as a snapshot of the newest `fit`.

    Args:
        fit: The number of the beginning `fit` in the program, from 0.
        labels: The snapshots of the directory, each with a label that says in which `fit` it was
            taken.
    """
    known = [(name, label) for name, label in labels if label is not None]
    unread = [name for name, label in labels if label is None]
    newest = known[-1][1].fit if known else fit
    if newest < fit:
        return Beginning("new", [])
    if newest == fit:
        own = [name for name, label in known if label.fit == fit]
        return Beginning("same", sorted([*own, *unread], reverse=True))
    finished = [(name, label.fit) for name, label in known if label.finished and label.fit >= fit]
    own = [name for name, of in finished if of == fit]
    if own:
        return Beginning("same", own[::-1])
    oldest = min((of for _, of in finished), default=newest)
    names = [name for name, of in finished if of == oldest]
    return Beginning("passed", (names or [name for name, _ in known])[::-1])


def cut_off_after(fit: int, labels: Labels) -> int | None:
    """Returns the number of a later `fit` in which an earlier run was interrupted, if there is one.

    Called when `fit` begins, to find out whether it is in fact the later `fit`. Called again when
    `fit` has ended: if the later `fit` is still to be resumed, the snapshots are kept. The result
    is a number only if there is a final snapshot of `fit`, and the newest snapshot was taken during
    the later `fit` and not at its end.

    Args:
        fit: The number of this `fit` in the program, from 0.
        labels: The snapshots of the directory, each with a label that says in which `fit` it was
            taken.
    """
    known = [label for _, label in labels if label is not None]
    is_cut_off = bool(known) and known[-1].fit > fit and not known[-1].finished
    return known[-1].fit if is_cut_off and Label(fit, True) in known else None


def ends_to_keep(
    fit: int, labels: Labels, count: int | None, size: Callable[[SnapshotName], int]
) -> set[SnapshotName]:
    """Returns the names of the final snapshots of earlier `fit`s that must not be deleted.

    If the program is run again, a finished `fit` restores its final state from such a snapshot.

    Args:
        fit: The number of the current `fit` in the program, from 0.
        labels: The snapshots of the directory, each with a label that says in which `fit` it was
            taken.
        count: The number of `fit`s whose final snapshot is kept. None keeps those of the last 100,
            up to a total of 1 GiB, but at least 3.
        size: A function that returns the size of a snapshot in bytes.
    """
    last = {
        label.fit: name
        for name, label in labels
        if label is not None and label.finished and label.fit < fit
    }
    newest_first = [last[number] for number in sorted(last, reverse=True)]
    if count is not None:
        return set(newest_first[:count])
    sums = accumulate(size(name) for name in newest_first[:_MOST])
    return set(newest_first[: max(_LEAST, sum(total <= _ROOM for total in sums))])


@dataclass(eq=False)
class Program:
    """A record of the `fit`s that this process has run with one directory of snapshots.

    When a program is run again, a `fit` that an earlier run has finished is passed over if the
    final snapshot of this `fit` has been deleted. Then the `fit` takes no step, and the model gets
    the state of a later `fit`.

    Attributes:
        fits: The number of the current `fit` or, between two `fit`s, of the next one, from 0. A
            `fit` that the program itself skips, and does not call again, is counted, too.
        histories: The values of the `History` callbacks of finished `fit`s, also of earlier runs.
            The keys are the numbers of the `fit`s as strings.
        has_passed: Whether the current `fit` or, between two `fit`s, the previous one was passed
            over. Then the optimizer may have the learning rate of a later `fit`.
        has_borrowed: Whether any `fit` of this process was passed over. Then the model may have the
            weights of a later `fit`, and a `fit` is no longer recognized by its weights.
        interrupted: What tells the call of the last `fit` from others, if a callback such as
            TimeLimit has interrupted it; otherwise None.
        starts: What each `fit` that this process has begun began with, by the number of the `fit`.
        unfinished: The number of the `fit` that was interrupted and has not come to its end since;
            None if there is none.
        repeats_until: The number of the `fit` to which the process repeats the earlier ones after
            an interruption. Their models may have the weights that they have ended with.
        left_at: When a `fit` was last interrupted, by `time.monotonic()`.
        by_callback: Whether a callback had interrupted it, and no error or signal.
        numbers: The number of each `fit` that this process has begun among all `fit`s of the
            program, also those without this directory; by its number with this directory.
    """

    fits: int = 0
    histories: dict[str, Any] = field(default_factory=dict)
    has_passed: bool = False
    has_borrowed: bool = False
    interrupted: Any = None
    starts: dict[int, Start] = field(default_factory=dict)
    unfinished: int | None = None
    repeats_until: int = 0
    left_at: float = 0.0
    by_callback: bool = False
    numbers: dict[int, int] = field(default_factory=dict)
    _is_left: bool = False
    _left: tuple[Any, Any] | None = None

    def begin(self, fit: int, start: Start) -> None:
        """Records that a `fit` begins, and deletes the records of later ones if it is a new one.

        A repeated one keeps the record of what it began with when it was called first.

        Args:
            fit: The number of the `fit` in the program.
            start: What the `fit` begins with.
        """
        first = self.starts.get(fit)
        if first is not None and (fit < self.repeats_until or fit == self.unfinished):
            start = start.again(first)
        else:
            self.starts = {number: kept for number, kept in self.starts.items() if number < fit}
        self.fits = fit
        self.starts[fit] = start

    def number_of_all(self, fit: int, counted: int) -> int:
        """Returns the number of a `fit` among all `fit`s of the program, and records it.

        It is that of the process, and higher by the number of `fit`s with this directory that the
        program has skipped by itself. A `fit` that is called again has the number that it had.

        Args:
            fit: The number of the `fit` among those with this directory.
            counted: How many `fit`s of the program are known to come before it.
        """
        if fit not in self.numbers:
            skipped = fit - max(self.numbers, default=-1) - 1
            self.numbers[fit] = counted + max(0, skipped)
        return self.numbers[fit]

    def end(self) -> None:
        """Records that the current `fit` has come to its end."""
        self.unfinished = None if self.unfinished == self.fits else self.unfinished
        self.fits += 1
        self.interrupted, self._is_left = None, False

    def repeated(self, start: Start, may_be: Callable[[int], bool | None]) -> Repeat | None:
        """Returns which `fit` is repeated after an interruption; None if it is a further one.

        Args:
            start: What the beginning `fit` begins with.
            may_be: A function that gets the number of a `fit`, and returns whether that `fit` had
                the same settings as the beginning one; None if this is unknown.
        """
        left = [each for each in _PROGRAMS.values() if each.unfinished in each.starts]
        last = self if self in left else max(left, key=lambda each: each.left_at, default=None)
        if last is None or last.unfinished is None:
            return None
        # The records of later ones are only kept while earlier ones are repeated.
        is_repeating = not self._is_left and self.fits in self.starts
        interruption = Interruption(
            last.starts[last.unfinished],
            last.unfinished if last is self else None,
            last.by_callback,
            self.fits if is_repeating else None,
        )
        repeat = repeated(start, self.starts, may_be, interruption)
        if repeat is None:
            self.fits = max([self.fits, *(fit + 1 for fit in self.starts)])
        else:
            further = self.fits if self.unfinished is None else self.unfinished
            self.repeats_until = max(self.repeats_until, further)
        return repeat

    def pass_over(self) -> None:
        """Records that the current `fit` takes no step and gets the state of a later `fit`.

        An earlier run has finished the current `fit`, and its final snapshot has been deleted.
        """
        self.has_passed = self.has_borrowed = True

    def leave_fit(self, now: dict[str, Any], begun: dict[str, Any], *, by_callback: bool) -> None:
        """Records that the current `fit` is unfinished, since the process may call it again.

        The learning rates with which it began and stopped are for `of_this_fit`. They are not
        recorded if the learning rate with which the `fit` began is unknown.

        Args:
            now: The part of the training's fingerprint (a description by plain values) that
                describes the optimizers, when the `fit` stops.
            begun: The fingerprint of the training when the `fit` began.
            by_callback: Whether a callback has interrupted it, and no error or signal.
        """
        self.unfinished = max(self.fits, self.unfinished or 0)
        self.left_at, self.by_callback, self._is_left = time.monotonic(), by_callback, True
        if "learning_rate" in begun:  # else it is unknown, see `of_this_fit`
            self._left = now["learning_rate"], begun["learning_rate"]

    def of_this_fit(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """Returns the fingerprint of a training that can be compared with that of a snapshot.

        A fingerprint describes a training by plain values. To be comparable, it must have the
        learning rate with which this `fit` began when it was called first. Usually this is the
        current rate, and the fingerprint is returned unchanged. There are two exceptions:

        - An earlier call of this `fit` in the same process failed, and the current rate is the one
          at the failure. Callbacks may have changed the rate during that call, so it is replaced
          by the rate with which that call began.
        - The previous `fit` was passed over (`pass_over`). Then the right rate is unknown, and the
          learning rate is left out of the fingerprint.

        Call this method only once for each `fit`, since it deletes the rates that `leave_fit` has
        recorded, and sets `has_passed` to False.

        Args:
            fingerprint: The fingerprint of the training, with the current learning rate.
        """
        left, self._left = self._left, None
        passed, self.has_passed = self.has_passed, False
        if passed:
            return {k: v for k, v in fingerprint.items() if k != "learning_rate"}
        if left is not None and fingerprint["learning_rate"] == left[0]:
            return {**fingerprint, "learning_rate": left[1]}
        return fingerprint


_PROGRAMS: dict[str, Program] = {}


def program_of(directory: str, *, is_new: bool = False) -> Program:
    """Returns this process's record of the `fit`s with a directory; creates it if there is none.

    Args:
        directory: The path of the directory of snapshots, without symbolic links.
        is_new: Whether the directory has just been created. Then an existing record is of a deleted
            directory with the same path, and is replaced by a new record.
    """
    if is_new:
        _PROGRAMS.pop(directory, None)
    return _PROGRAMS.setdefault(directory, Program())


def forget() -> None:
    """Deletes the records of all directories, as if the process were new; for tests."""
    _PROGRAMS.clear()
