"""Which `fit` of a program a snapshot belongs to, and which snapshot a new `fit` resumes from.

A program may call `fit` several times with one directory. Each snapshot contains the number of its
`fit`, which the process counts from 0, and whether this `fit` was finished. So a program that is
killed at any point and run again finds what it has already done: each finished `fit` restores its
final state, the interrupted one is resumed, and the later ones begin as new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple

from kfit.checkpoint.store import SnapshotName


class Label(NamedTuple):
    """The label of a snapshot: which `fit` of the program the snapshot is of.

    Attributes:
        fit: The number of the `fit`, from 0.
        finished: Whether the snapshot was taken after the last step of this `fit`.
    """

    fit: int
    finished: bool

    @classmethod
    def of(cls, about: Mapping[str, Any]) -> Label:
        """Reads the label from a snapshot's `about`."""
        return cls(int(about.get("fit", 0)), about.get("finished") is True)


_LEAST, _MOST, _ROOM = 3, 100, 1 << 30
"""The final snapshots of finished `fit`s that are kept: at least this many and at most this many,
between these limits as many as take up to this many bytes in total."""

Labels = Sequence[tuple[SnapshotName, Label | None]]
"""The snapshots of a directory, the oldest first; the label is None if it cannot be read."""


class Beginning(NamedTuple):
    """The state that a `fit` begins with.

    Attributes:
        kind: "new": the model as it is. "same": a snapshot of this `fit`, which was interrupted or
            finished. "passed": a snapshot of a later `fit`, since this one was finished and its
            final snapshot has been deleted.
        names: The snapshots to restore, the best first; if one is damaged, the next one is used.
    """

    kind: Literal["new", "same", "passed"]
    names: list[SnapshotName]


def beginning_of(fit: int, labels: Labels) -> Beginning:
    """Returns the state that a `fit` begins with, given the snapshots in the directory.

    The newest snapshot shows how far the program has come. A snapshot whose label cannot be read is
    treated as one of the newest `fit`.

    Args:
        fit: The number of the `fit`.
        labels: The snapshots of the directory.
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
    """Returns the number of a later `fit` that was interrupted, according to the newest snapshot.

    The result is None if there is none, or if `fit` itself has no final snapshot.

    Args:
        fit: The number of this `fit`.
        labels: The snapshots of the directory.
    """
    known = [label for _, label in labels if label is not None]
    is_cut_off = bool(known) and known[-1].fit > fit and not known[-1].finished
    return known[-1].fit if is_cut_off and Label(fit, True) in known else None


def ends_to_keep(
    fit: int, labels: Labels, count: int | None, size: Callable[[SnapshotName], int]
) -> set[SnapshotName]:
    """Returns the final snapshots of earlier finished `fit`s that must not be deleted.

    Args:
        fit: The number of this `fit`.
        labels: The snapshots of the directory.
        count: The number of `fit`s whose final snapshot is kept. None keeps those of the last 100,
            up to a total of 1 GiB, but at least 3.
        size: Returns the size of a snapshot in bytes.
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
    """A record of the `fit`s that this process has run with one directory of snapshots.

    A `fit` is passed over if it takes no step and gets the state of a later `fit`, since its own
    final snapshot has been deleted (`Beginning.kind` is "passed").

    Attributes:
        fits: The number of the next `fit`: how many are finished, including those that the program
            has skipped by itself.
        histories: The Histories of finished `fit`s, also of earlier runs, by the number of the
            `fit` as a string.
        has_passed: Whether the previous `fit` was passed over, so that the state of the optimizer
            is that of a later one.
        has_borrowed: Whether any `fit` was passed over, so that the weights of the model may be
            those of a later one.
    """

    fits: int = 0
    histories: dict[str, Any] = field(default_factory=dict)
    has_passed: bool = False
    has_borrowed: bool = False
    _left: tuple[Any, Any] | None = None

    def pass_over(self) -> None:
        """Records that a `fit` is passed over.

        It takes no step and gets the state of a later `fit`, since its own snapshot has been
        deleted.
        """
        self.has_passed = self.has_borrowed = True

    def leave_fit(self, now: dict[str, Any], begun: dict[str, Any]) -> None:
        """Records the learning rates of an unfinished `fit` for `of_this_fit`, if they are known.

        Args:
            now: The fingerprint of the optimizers now.
            begun: The fingerprint with which the `fit` began.
        """
        if "learning_rate" in begun:  # else it is unknown, see `of_this_fit`
            self._left = now["learning_rate"], begun["learning_rate"]

    def of_this_fit(self, fingerprint: dict[str, Any]) -> dict[str, Any]:
        """Replaces the learning rate in a fingerprint by the one that this `fit` first began with.

        Callbacks change the learning rate during training. If a `fit` failed and the same process
        calls it again with the same optimizer, the current rate is not the one that the `fit` first
        began with. After a `fit` that was passed over, the rate is unknown and left out.

        What `leave_fit` and `pass_over` have recorded for this is deleted, so call it once for each
        `fit`.

        Args:
            fingerprint: The fingerprint of the training, with the current learning rate.

        Returns:
            The fingerprint with the first learning rate, or without any.
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
    """Returns the record that this process has of a directory; creates one if there is none.

    Args:
        directory: The directory's path, without links.
        is_new: Whether the directory has just been created. Then the record, which is of a deleted
            directory with the same path, is reset.
    """
    if is_new:
        _PROGRAMS.pop(directory, None)
    return _PROGRAMS.setdefault(directory, Program())


def forget() -> None:
    """Deletes all records, as if the process were new; for tests."""
    _PROGRAMS.clear()
