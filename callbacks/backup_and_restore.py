"""BackupAndRestore: training goes on at the very step at which it was cut off."""

from __future__ import annotations

import datetime as dt
import os
import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.state import PARTS, Part, is_finite
from kfit.checkpoint.store import Store
from kfit.checkpoint.writer import Writer
from kfit.training_callback import Reason, TrainingCallback

_OVERHEAD = 0.01
"""What saving may cost with `save_freq="auto"`, as a fraction of the time of training."""
_SHORTEST = 5.0
"""Seconds between two saves with `save_freq="auto"`, at the least."""


class BackupAndRestore(TrainingCallback):
    """Saves the state of training, and has it go on from there when the program is run again.

    What is saved is all there is: weights, optimizer, metrics so far, the place in the data,
    random generators, History, and what the callbacks remember. A training that was killed and
    started again ends with the weights, bit for bit, of one that never was. On SIGTERM, SIGUSR1
    and Ctrl-C the step at which training stops is saved, whatever `save_freq` is.

    A snapshot is written in the background and appears at once; a damaged one is noticed, and the
    one before it is taken. On several workers only the chief needs to see `backup_dir`. Training
    can go on with another number of workers or replicas, or another strategy.

    A state whose weights hold NaN or infinity is not saved.

    Example:
        >>> backup = kfit.callbacks.BackupAndRestore("backup", save_freq=100)
        >>> trainer.fit(x, y, epochs=10, callbacks=[backup])

    Args:
        backup_dir: Directory of the snapshots, for this training alone.
        save_freq: When to save: "epoch" at the end of each; an integer every that many steps; a
            `datetime.timedelta` when that much time has passed; "auto" as often as costs 1 % of
            the time, by what saving was measured to take.
        keep: Number of good snapshots to keep, at least 2.
        delete_checkpoint: Whether to delete the snapshots when training has come to its end. If
            not, running the program again trains no further than the last epoch it is given.
        parts: What to take of a snapshot: any of "model", "optimizer", "metrics", "progress" (with
            the place in the data), "callbacks" and "random". Only these must fit; all by default.
        if_busy: What to do when a save is due while the last snapshot is still being written:
            "wait" for it, or "skip" this one. At the end of an epoch it waits.

    Raises:
        ValueError: If an argument is wrong.
        DirectoryInUseError: If another run that is alive uses the directory.
        ForeignFileError: If the directory is another user's, or its `.kfit-lock` is not kfit's.
        NoGoodSnapshotError: If there are snapshots, and all are damaged.
        SnapshotMismatchError: If the snapshot is of another training; every difference is named.
        OSError: If a snapshot cannot be written: raised at the end of the step under way.
    """

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: Literal["epoch", "auto"] | int | dt.timedelta = "epoch",
        keep: int = 2,
        delete_checkpoint: bool = True,
        *,
        parts: Sequence[Part] = PARTS,
        if_busy: Literal["wait", "skip"] = "wait",
    ) -> None:
        super().__init__()
        self.backup_dir = os.fspath(backup_dir)
        if not self.backup_dir:
            raise ValueError("`backup_dir` must be the path of a directory. Received: ''")
        self.save_freq = _checked_frequency(save_freq)
        if not isinstance(keep, int) or keep < 2:
            raise ValueError(
                "`keep` must be an integer of at least 2, so that a damaged snapshot has one to "
                f"fall back to. Received: {keep!r}"
            )
        unknown = sorted(set(parts) - set(PARTS))
        if unknown or isinstance(parts, str):
            raise ValueError(f"`parts` must be a list of any of {PARTS}. Received: {parts!r}")
        if if_busy not in ("wait", "skip"):
            raise ValueError(f'`if_busy` must be "wait" or "skip". Received: {if_busy!r}')
        self.keep = keep
        self.delete_checkpoint = delete_checkpoint
        self.parts = tuple(parts)
        self.if_busy = if_busy
        self._store: Store | None = None
        self._lock: DirectoryLock | None = None
        self._writer = Writer()
        self._saved: tuple[int, int] | None = None
        self._saved_step = 0
        self._saved_at = 0.0
        self._held_up = 0.0

    def find_snapshot(self) -> Snapshot | None:
        """Opens the directory, and returns the newest good snapshot."""
        self._open()
        assert self._store is not None
        snapshot, damages = self._store.newest()
        for damage in damages:
            warnings.warn(f"{self.backup_dir}: skipping a damaged snapshot: {damage}", stacklevel=2)
        if snapshot is not None:
            print(f"Going on from {self.backup_dir}, step {snapshot.about['step']}", flush=True)
        return snapshot

    def resume(self, snapshot: Snapshot) -> None:
        """Has training go on from the snapshot."""
        self._training.resume(snapshot, self.parts)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._mark_saved()
        self._saved = None

    def steps_until_due(self) -> int | None:
        """See `TrainingCallback.steps_until_due`."""
        if isinstance(self.save_freq, int):
            return self.save_freq - self._training.progress.step % self.save_freq
        return None

    def is_due(self) -> bool:
        """See `TrainingCallback.is_due`; the chief looks at the clock, and for what went wrong."""
        self._writer.check()
        if self.save_freq == "epoch" or not self._training.is_chief:
            return False
        if self.if_busy == "skip" and self._writer.is_busy:
            return False
        if isinstance(self.save_freq, int):
            step = self._training.progress.step
            return step // self.save_freq > self._saved_step // self.save_freq
        return time.monotonic() - self._saved_at >= self._interval

    def on_save_point(self, reason: Reason) -> None:
        """Saves, if it is time to."""
        training = self._training
        if reason == "begin":
            return
        if reason == "epoch" and self.save_freq != "epoch":
            # The last state of all is kept, if anything is.
            is_kept = training.is_over and not self.delete_checkpoint
            if not is_kept:
                return
        progress = training.progress
        if self._saved == (progress.epoch, progress.step_in_epoch):
            if reason == "stop":
                self._writer.wait()
            return
        begun = time.monotonic()
        snapshot = training.snapshot()
        if training.is_chief:
            self._writer.submit(lambda: self._write(snapshot))
            if reason == "stop":
                self._writer.wait()
        self._held_up = time.monotonic() - begun
        self._mark_saved()

    def on_fit_exit(self, succeeded: bool) -> None:
        """Waits for what is being written, and lets go of the directory."""
        training = self._training
        try:
            self._writer.wait()
            if succeeded and self.delete_checkpoint:
                # No task is in need of a snapshot any more.
                training.agreement.any(False)
                self._clear()
        finally:
            if self._lock is not None:
                self._lock.release()
            self._lock = self._store = self.training = None

    @property
    def _training(self) -> Any:
        if self.training is None:
            raise RuntimeError(
                "kfit.callbacks.BackupAndRestore works in the `fit` of kfit: use kfit.Trainer, "
                "kfit.Model or kfit.fit, or keras.callbacks.BackupAndRestore with Keras' own."
            )
        return self.training

    @property
    def _interval(self) -> float:
        """Seconds between two saves."""
        if isinstance(self.save_freq, dt.timedelta):
            return self.save_freq.total_seconds()
        return max(_SHORTEST, (self._held_up + self._writer.seconds) / _OVERHEAD)

    def _mark_saved(self) -> None:
        progress = self._training.progress
        self._saved = (progress.epoch, progress.step_in_epoch)
        self._saved_step = progress.step
        self._saved_at = time.monotonic()

    def _open(self) -> None:
        try:
            os.makedirs(self.backup_dir, mode=0o700, exist_ok=True)
            self._lock = DirectoryLock(self.backup_dir)
            store = Store(self.backup_dir, self.keep)
            store.generation = max(store.generation, self._lock.generation)
            store.sweep()
            store.probe()
        except OSError as error:
            raise OSError(
                error.errno,
                f"`backup_dir` must be a directory that can be written to: {error.strerror}",
                self.backup_dir,
            ) from error
        self._store = store

    def _write(self, snapshot: Snapshot) -> None:
        """Runs in the writer's thread."""
        assert self._store is not None
        assert self._lock is not None
        step = snapshot.about["step"]
        if not is_finite(snapshot.state["variables"]):
            warnings.warn(
                f"The weights hold NaN or infinity at step {step}; this state is not saved.",
                stacklevel=2,
            )
            return
        if not self._lock.is_held:
            raise DirectoryInUseError(
                f"{self.backup_dir} was taken over by a run that was started in the place of this."
            )
        try:
            self._store.save(snapshot)
        except OSError as error:
            raise OSError(
                error.errno,
                f"The snapshot of step {step} could not be written: {error.strerror}; the ones "
                "before it are untouched",
                error.filename or self.backup_dir,
            ) from error

    def _clear(self) -> None:
        if self._store is None or self._lock is None:
            return
        self._store.clear()
        self._lock.remove()
        try:
            os.rmdir(self.backup_dir)
        except OSError:
            return  # the user keeps something else there


def _checked_frequency(save_freq: Any) -> Any:
    is_count = isinstance(save_freq, int) and not isinstance(save_freq, bool) and save_freq >= 1
    is_time = isinstance(save_freq, dt.timedelta) and save_freq.total_seconds() > 0
    if not (is_count or is_time or save_freq in ("epoch", "auto")):
        raise ValueError(
            '`save_freq` must be "epoch", "auto", a number of steps of at least 1 or a '
            f"datetime.timedelta above 0. Received: {save_freq!r}"
        )
    return save_freq
