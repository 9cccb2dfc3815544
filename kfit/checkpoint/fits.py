"""Which `fit` of a program a snapshot is of, and what a `fit` that begins goes on from.

A program may call `fit` more than once with one directory. Each snapshot says the number of its
`fit`, counted from 0 by the process, and whether that had no step left to take. So a program that
is killed at any point and run again finds what it has done already: the `fit`s that were over are
given their end back, the one that was cut off goes on, and those after it are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from kfit.checkpoint.store import SnapshotName


class Label(NamedTuple):
    """What a snapshot says of its `fit`.

    Attributes:
        fit: The number of the `fit`, from 0.
        finished: Whether it had no step left to take.
    """

    fit: int
    finished: bool

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Label:
        """The label in a snapshot's `about`."""
        return cls(int(about.get("fit", 0)), about.get("finished") is True)


_LEAST, _MOST, _ROOM = 3, 100, 1 << 30
"""Of how many finished `fit`s the ends are kept, and the bytes that they may take together."""

Labels = Sequence[tuple[SnapshotName, Label | None]]
"""The snapshots of a directory, the oldest first; None where one cannot be read."""


class Beginning(NamedTuple):
    """What a `fit` begins with.

    Attributes:
        kind: "new" from the model as it is; "same" from a snapshot of this very `fit`, cut off or
            finished; "passed" where it was finished so long ago that its end is kept no more.
        names: The snapshots to take, the best first; the next where one is damaged.
    """

    kind: Literal["new", "same", "passed"]
    names: list[SnapshotName]


def beginning_of(fit: int, labels: Labels) -> Beginning:
    """What the `fit` of a number begins with, of what there is in the directory.

    The newest snapshot tells how far the program had come. Of one that is damaged beyond reading
    nobody knows; it counts as one of the newest `fit`.
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
    """The number of a later `fit` that was cut off, where this one was finished; None without."""
    known = [label for _, label in labels if label is not None]
    is_cut_off = bool(known) and known[-1].fit > fit and not known[-1].finished
    return known[-1].fit if is_cut_off and Label(fit, True) in known else None


def ends_to_keep(
    fit: int, labels: Labels, count: int | None, size: Callable[[SnapshotName], int]
) -> set[SnapshotName]:
    """The last snapshots of the finished `fit`s before this one, as far as they are kept.

    Args:
        fit: The number of this `fit`.
        labels: The snapshots of the directory.
        count: Of how many `fit`s; None for as many as take little room.
        size: Tells how many bytes a snapshot takes.
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


@dataclass
class Program:
    """What this process has done with one directory of snapshots.

    Attributes:
        fits: How many `fit`s have come to their end here.
        histories: What their Histories remember, those of earlier runs too, by their numbers.
        has_passed: Whether the last `fit` was passed over, so that the optimizer is of a later one.
        has_borrowed: Whether any was, so that a model may have had weights of a later one.
    """

    fits: int = 0
    histories: dict[str, Any] = field(default_factory=dict)
    has_passed: bool = False
    has_borrowed: bool = False
    _left: tuple[Any, Any] | None = None

    def pass_over(self) -> None:
        """Notes that a `fit` is passed over."""
        self.has_passed = self.has_borrowed = True

    def leave_fit(self, now: dict[str, Any], begun: dict[str, Any]) -> None:
        """Notes the learning rate at which a `fit` was left unfinished, and that it began with."""
        if "learning_rate" in begun:  # else it was passed over, or not even begun
            self._left = now["learning_rate"], begun["learning_rate"]

    def of_this_fit(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """A fingerprint with the learning rate that this `fit` began with, wherever that is known.

        Callbacks change it during training: one that this process has left, and begins again with
        the optimizer as it is, did not begin with what it has now.
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
    """The record of this process for a directory.

    Args:
        directory: The directory's path, without links.
        is_new: Whether it has just been made, so that nothing was done with it: one of that path
            was deleted meanwhile.
    """
    if is_new:
        _PROGRAMS.pop(directory, None)
    return _PROGRAMS.setdefault(directory, Program())


def forget() -> None:
    """Begins anew, as a new process does."""
    _PROGRAMS.clear()
