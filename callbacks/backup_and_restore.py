"""`BackupAndRestore`: a callback that saves snapshots of training, and resumes from them."""

from __future__ import annotations

import datetime as dt
import errno
import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import keras

from kfit.argument_checks import check_directory, check_positive, checked_save_freq, is_integer
from kfit.checkpoint import at_exit, marks
from kfit.checkpoint.fits import (
    Label,
    Labels,
    beginning_of,
    cut_off_after,
    ends_to_keep,
    program_of,
)
from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.snapshot import Snapshot, with_scalars, without_others
from kfit.checkpoint.state import PARTS, Part, is_finite
from kfit.checkpoint.store import SnapshotName, Store
from kfit.checkpoint.writer import Writer
from kfit.fault_sites import Site, reach
from kfit.fingerprints import SECTIONS, Section, of_optimizers
from kfit.heartbeat.reached import nth
from kfit.heartbeat.tracebacks import lines_of_callers, warn_user
from kfit.training.callback import Reason, TrainingCallback
from kfit.training.fit_state import FitState
from kfit.training.progress_bar import note_in_bars
from kfit.training.same_training import refuse_another
from kfit.training.which_fit import (
    Beginner,
    message_of_one_left_out,
    start_of,
    tell_of_no_snapshot,
)

_OVERHEAD = 0.01
"""The fraction of the training time that saving may take with `save_freq="auto"`."""
_SHORTEST = 2.0
"""The least number of seconds between two saves with `save_freq="auto"`."""
_PREPARES = 10
"""How many times as long as later saves the first one may take, with `save_freq="auto"`."""


class BackupAndRestore(TrainingCallback):
    """A callback that saves the state of training, and resumes from it when the program runs again.

    A snapshot contains the complete state: weights, optimizer, metrics so far, the position in the
    data, random generators, the `History`, and the states of the callbacks. Training that was
    killed and restarted ends with the same weights as training without interruption: on CPUs bit
    for bit, on GPUs up to rounding. On SIGTERM, SIGHUP, SIGUSR1 and Ctrl-C the state is saved after
    the current step, whatever `save_freq` is, and `fit` raises an error that ends the program.

    The whole program is resumed, not only `fit`. Suppose that the program is killed after a `fit`
    has finished, for example in `evaluate` or `save`. In the next run this `fit` returns at once,
    with its final state and its `History`. A program may call `fit` several times with one
    directory, since each snapshot records the number of its `fit`. A program that is run again may
    also skip a finished `fit` by itself, for example by loading the saved model instead. To find
    out which `fit` of the program the next one is, kfit compares its settings, and the weights with
    which it begins, with those of the `fit`s of the earlier run. The snapshots are deleted when the
    program ends with exit status 0 and every `fit` has finished; under `kfit run`, which may have
    to restart other tasks, when the next run begins.

    Snapshots are written in the background and atomically. A damaged snapshot is detected, and the
    snapshot before it is used. With several workers only the chief needs access to `backup_dir`.
    Training can resume with a different number of workers or replicas, or a different strategy.

    A state whose weights contain NaN or infinity is not saved.

    Example:
        >>> backup = kfit.callbacks.BackupAndRestore("backup", save_freq=100)
        >>> trainer.fit(x, y, epochs=10, callbacks=[backup])

    Args:
        backup_dir: The directory of the snapshots. All `fit`s of a program may use it, one after
            the other; another program needs another directory.
        save_freq: When to save. "epoch": at the end of each epoch. An integer: after every so many
            steps. A `datetime.timedelta`: when so much time has passed since the last save. "auto":
            as often as a budget allows: saving takes at most about 1 % of the time, as estimated
            from the last save, and two saves are at least 2 seconds apart. After a SIGKILL, the
            steps since the last save are taken again.
        keep: The number of undamaged snapshots to keep, at least 2; older ones are deleted.
        delete_checkpoint: Whether to delete the snapshots at the successful end of the program. If
            False, another run of the program resumes from the last snapshot. Its `fit` takes no
            step, unless `epochs` was increased.
        parts: The parts of a snapshot to restore: any of "model", "optimizer", "metrics",
            "progress" (with the position in the data), "callbacks" and "random"; by default all of
            them. If some are left out, only what the restored parts depend on is compared with the
            snapshot. For example, without "progress" the data may have changed, whatever
            `allow_changes` is.
        if_busy: What to do if a save is due while the previous snapshot is still being written:
            "wait" until it is written, or "skip" this save. At the end of an epoch the callback
            always waits.
        keep_finished: The number of earlier `fit`s of the program whose final snapshots are kept.
            None keeps those of the last 100, up to a total of 1 GiB, but at least 3.
        allow_changes: What may have changed since a snapshot was saved: any of "data",
            "validation_data", "seed", "class_weight", "model", "loss", "optimizer", "learning_rate"
            and "metrics", or True for all of them. `epochs`, the strategy and the number of workers
            may always change. Any other change raises an error that names it, unless no restored
            part depends on it (see `parts`). With "learning_rate", training continues with the
            learning rate that the program sets; without it, with the learning rate in the snapshot,
            which callbacks may have changed since training began. With "data", training continues
            in the new data at the position that it had reached in the old data. With "metrics",
            metrics that the snapshot does not have begin anew.

    Raises:
        ValueError: If an argument is wrong.
        DirectoryInUseError: If another live run uses the directory.
        ForeignFileError: If the directory belongs to another user, or its `.kfit-lock` was not
            written by kfit.
        NoGoodSnapshotError: If there are snapshots, and all are damaged.
        SnapshotMismatchError: If the snapshot is of a different training. The message lists every
            difference.
        OSError: If a snapshot cannot be written. The error is raised at the end of the current
            step.
    """

    _needs_kfit = True

    _counts_fits = True
    """Whether the directory may hold the snapshots of several successive `fit`s of a program."""

    def __init__(
        self,
        backup_dir: str | os.PathLike[str],
        save_freq: Literal["epoch", "auto"] | int | dt.timedelta = "epoch",
        keep: int = 2,
        delete_checkpoint: bool = True,
        *,
        parts: Sequence[Part] = PARTS,
        if_busy: Literal["wait", "skip"] = "wait",
        keep_finished: int | None = None,
        allow_changes: bool | Sequence[Section] = False,
    ) -> None:
        super().__init__()
        self.backup_dir = check_directory("backup_dir", backup_dir)
        is_time = isinstance(save_freq, dt.timedelta) and save_freq.total_seconds() > 0
        others = ["a datetime.timedelta above 0"]
        self.save_freq: Any = (
            save_freq if is_time else checked_save_freq(save_freq, "epoch", "auto", others=others)
        )
        if not is_integer(keep) or keep < 2:
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
        check_positive(keep_finished=keep_finished)
        if isinstance(allow_changes, bool):
            allow_changes = SECTIONS if allow_changes else ()
        if isinstance(allow_changes, str) or set(allow_changes) - set(SECTIONS):
            raise ValueError(
                f"`allow_changes` must be a bool, or a list of any of {SECTIONS}. "
                f"Received: {allow_changes!r}"
            )
        self.allow_changes = tuple(allow_changes)
        self.if_busy = if_busy
        self.keep_finished = keep_finished
        self._store: Store | None = None
        self._lock: DirectoryLock | None = None
        self._writer = Writer()
        self._path = ""
        self._fit = 0
        self._is_new = True
        self._history: dict[str, Any] | None = None
        self._written: SnapshotName | None = None
        self._written_step: int | None = None
        self._fingerprint: dict[Any, Any] = {}
        self._call: Any = None
        self._is_past = False  # whether the snapshot is of more epochs than this `fit` is to train
        self._weights_before: int | None = None
        self._saved: tuple[int, int] | None = None
        self._saved_as_last = False
        self._saved_step = 0
        self._saved_at = 0.0
        self._held_up = 0.0
        self._saves = 0
        self._told_of_nan = False

    def find_snapshot(self) -> Snapshot | None:
        """Returns the snapshot that this `fit` resumes from; None if it begins anew.

        It is called only on the chief, before training. It also creates the directory if there is
        none, locks the directory until `on_fit_exit`, and finds out which `fit` of the program this
        is. If an earlier run of the program has ended successfully, the snapshots of that run are
        deleted.
        """
        self._open()
        self._is_past = False
        assert self._store is not None
        assert self._lock is not None
        store, lock, labels = self._store, self._lock, self._labels()
        if not labels:
            lock.note_fits(())  # without snapshots, the records of earlier `fit`s are obsolete
        program = program_of(self._path, is_new=lock.lock_count == 1 and not labels)
        described = self.training.fingerprint()
        self._call = _call_of(self.training, described)
        if program.interrupted is not None and program.interrupted != self._call:
            return Snapshot({"step": 0, "held_up": True}, {})
        self._fingerprint = program.of_this_fit(described)
        is_spoilt = False
        if self._counts_fits:
            start = start_of(self.training)
            self._weights_before = start.weights
            beginner = Beginner(start, self._fingerprint)
            self._fit = beginner.number(program, store, labels, lock.fits)
            is_spoilt = start.goes_on_from(program.starts.get(self._fit))
            program.begin(self._fit, start)
            heartbeat = self.training.call.heartbeat
            heartbeat.set_fit_number(program.number_of_all(self._fit, heartbeat.fit_number))
        if self._fit:
            ends = ends_to_keep(self._fit, labels, self.keep_finished, store.size)
            store.is_needed = ends.__contains__
        beginning = beginning_of(self._fit, labels)
        snapshot, damages = store.newest(beginning.names)
        for damage in damages:
            warn_user(f"{self.backup_dir}: skipping a damaged snapshot: {damage}")
        if snapshot is None:
            self._tell_if_vanished(labels)
            if is_spoilt:
                tell_of_no_snapshot(self.backup_dir, self._fit)
            if self._weights_before is not None:
                lock.note_fits(marks.begun(lock.fits, self._fit, self._weights_before))
            return None
        histories = with_scalars(snapshot.state.get("histories", {}))
        program.histories = {**histories, **program.histories}
        if beginning.kind == "passed":
            program.pass_over()
            return Snapshot({**snapshot.about, "passed_by": self._fit}, snapshot.state)
        changes = refuse_another(
            self.training, snapshot, self._fingerprint, self.parts, self.allow_changes
        )
        progress = snapshot.state["progress"]
        position = progress["epoch"], progress["step_in_epoch"]
        self._is_past = "progress" in self.parts and position > (self.training.epochs, 0)
        return Snapshot({**snapshot.about, "changes": changes}, snapshot.state)

    def resume(self, snapshot: Snapshot) -> None:
        """Requests that training resumes from a snapshot.

        It is called before training on all tasks. Usually the snapshot is one of this `fit`. If an
        earlier run has finished this `fit`, it may be one of a later `fit` of the program. Then
        this `fit` takes no step, and the model gets the state in the snapshot if that state fits
        the model.

        Args:
            snapshot: What `find_snapshot` has returned on the chief.
        """
        if snapshot.about.get("held_up"):
            self._hold_up()
            return
        self._is_new = False
        number = snapshot.about.get("passed_by")
        if number is None:
            changes = snapshot.about["changes"]
            if self.training.is_chief:
                changed = f" (changed since: {', '.join(changes)})" if changes else ""
                print(f"kfit: {self._beginning_at(snapshot)}{changed}", flush=True)
            self.training.request_restore(snapshot, self.parts, changes=changes)
            return
        self._history = with_scalars(snapshot.state.get("histories", {}).get(str(number), {}))
        fits = self.training.pass_over(snapshot)
        if self.training.is_chief:
            warn_user(
                f"The {nth(number)} `fit` of this program was finished by an earlier run, and "
                f"{self.backup_dir} does not hold its final snapshot "
                f"(`keep_finished={self.keep_finished}`; weights with NaN are not saved). It takes "
                "no step, and until a later `fit` whose final snapshot is kept the model stays as "
                "it is" + (f" after the {nth(snapshot.about['fit'])} `fit`." if fits else ".")
            )

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Records the present step and time, from which the next save is counted."""
        super().on_train_begin(logs)
        self.training.account.saves_as_allowed = self.save_freq == "auto"
        self._mark_saved()
        self._saved = None

    def on_restored(self) -> None:
        """Counts the next save from here: at places that come again, the state may be another."""
        self.on_train_begin()

    def steps_until_due(self) -> int | None:
        """Returns the number of steps until the next save; None if `save_freq` is no integer."""
        if isinstance(self.save_freq, int):
            return self.save_freq - self.training.progress.step % self.save_freq
        return None

    def is_due(self) -> bool:
        """Returns whether a snapshot must be saved after this step, by `save_freq`.

        Only the chief decides; on other tasks the result is False. With `save_freq="epoch"` the
        result is always False, since `on_save_point` then saves at the ends of epochs.

        Raises:
            DirectoryInUseError: If the program was started again meanwhile, and the new process has
                taken over the directory. So a process that was suspended meanwhile ends after its
                step, and not only when it saves: otherwise its callbacks would go on writing to the
                user's files.
            BaseException: If writing the previous snapshot in the background has failed.
        """
        self._refuse_if_replaced()
        self._writer.check()
        if self.save_freq == "epoch" or not self.training.is_chief:
            return False
        if self.if_busy == "skip" and self._writer.is_busy:
            return False
        if isinstance(self.save_freq, int):
            step = self.training.progress.step
            return step // self.save_freq > self._saved_step // self.save_freq
        return time.monotonic() - self._saved_at >= self._interval

    def on_save_point(self, reason: Reason) -> None:
        """Saves a snapshot of training, if a snapshot must be saved now.

        It is called on all tasks, since all of them together make the snapshot. The chief writes it
        in the background. If training stops here, the chief waits until the snapshot is written.

        Args:
            reason: Why it is called now: "begin" before the first step, "step" if `is_due` has
                returned True, "epoch" at the end of an epoch, "stop" if training is interrupted.
        """
        training = self.training
        # The final state is always saved: the program may be killed after `fit`.
        is_last = training.is_over and reason in ("begin", "epoch")
        if reason == "begin":
            self._give_history()
            if not (is_last and self._is_new):
                return
        if reason == "epoch" and self.save_freq != "epoch" and not is_last:
            return
        progress = training.progress
        at_end = is_last and not self._saved_as_last
        if self._saved == (progress.epoch, progress.step_in_epoch) and not at_end:
            if reason == "stop":
                self._writer.wait()
            return
        begun = time.monotonic()
        snapshot = training.snapshot()
        if training.is_chief:
            about = {
                **snapshot.about,
                "fit": self._fit,
                "finished": is_last,
                "stopped": reason == "stop",
            }
            state = {
                **snapshot.state,
                "histories": dict(program_of(self._path).histories),
                "fingerprint": self._fingerprint,
            }
            callbacks = training.callbacks
            self._writer.submit(
                lambda: self._write(Snapshot(about, state), callbacks), self._note_written
            )
            if reason == "stop":
                self._writer.wait()
        self._held_up = time.monotonic() - begun
        self._saves += 1
        training.account.waited_for_save(self._held_up)
        self._mark_saved(as_last=is_last)

    def on_fit_exit(self, succeeded: bool) -> None:
        """Waits until the last snapshot is written, and unlocks the directory.

        If `fit` has succeeded, it also records that this `fit` has finished.

        Args:
            succeeded: Whether training came to its end.
        """
        try:
            self._writer.wait()
            if self._lock is not None:
                if succeeded:
                    self._end_fit(self._lock)
                elif self._fingerprint:
                    now, program = of_optimizers(self.training.model), program_of(self._path)
                    by_callback = self.training.interrupted
                    program.leave_fit({**now}, self._fingerprint, by_callback=by_callback)
                    is_over = by_callback and not hasattr(sys, "ps1")
                    program.interrupted = self._call if is_over else None
        finally:
            if self._lock is not None:
                self._lock.release()
            self._lock = self._store = self._written = self._history = None
            self._is_new, self._fingerprint, self._written_step = True, {}, None
            self._told_of_nan = False

    @property
    def saved_in(self) -> str:
        """The directory of the snapshots, if it has one of the present step; otherwise empty."""
        is_saved = self._written_step == self.training.progress.step
        return self.backup_dir if is_saved else ""

    @property
    def _interval(self) -> float:
        """The number of seconds between two saves; used only if `save_freq` is a time or "auto".

        With "auto" it is so long that saving takes 1 % of the time, if the next save takes as long
        as the last one. But it is at least 2 seconds. The first save does not count in full: it
        also makes what later ones use again.
        """
        if isinstance(self.save_freq, dt.timedelta):
            return self.save_freq.total_seconds()
        seconds = self._held_up + self._writer.seconds
        if self._saves == 1:
            seconds /= _PREPARES
        return max(_SHORTEST, seconds / _OVERHEAD)

    def _mark_saved(self, *, as_last: bool = False) -> None:
        progress, self._saved_as_last = self.training.progress, as_last
        self._saved = (progress.epoch, progress.step_in_epoch)
        self._saved_step = progress.step
        self._saved_at = time.monotonic()

    def _open(self) -> None:
        try:
            os.makedirs(self.backup_dir, mode=0o700, exist_ok=True)
            self._lock = DirectoryLock(self.backup_dir)
            check = self.training.check
            store = Store(
                self.backup_dir, self.keep, check=check, check_own=partial(check, is_own=True)
            )
            store.lock_count = max(store.lock_count, self._lock.lock_count)
            store.sweep()
            if at_exit.has_ended(self.backup_dir, self._lock):
                self._tell_of_deletion(store)
                store.clear()
            at_exit.begin(self.backup_dir, self._lock)
            store.probe()
        except OSError as error:
            number, reason = error.errno, error.strerror
            if number == errno.ENOENT:  # so say /proc and others in which nothing can be made
                number, reason = errno.EACCES, "it does not exist, and cannot be made"
            raise OSError(
                number,
                f"`backup_dir` must be a directory that can be written to: {reason}",
                self.backup_dir,
            ) from None  # it says the same
        self._store = store
        self._path = os.path.realpath(self.backup_dir)
        at_exit.keep(self._path)

    def _tell_of_deletion(self, store: Store) -> None:
        """Tells that the snapshots of a finished run are deleted now, unless `verbose=0`."""
        if store.names() and self.training.account.shows:
            print(
                f"kfit: the run before has ended well: its snapshots in {self.backup_dir} are "
                "deleted, and training begins anew (`delete_checkpoint=False` keeps them, to go on "
                "with more `epochs`)",
                flush=True,
            )

    def _labels(self) -> Labels:
        assert self._store is not None
        abouts = [(name, self._store.about(name)) for name in self._store.names()]
        return [(name, None if about is None else Label.of(about)) for name, about in abouts]

    def _end_fit(self, lock: DirectoryLock) -> None:
        """Records that this `fit` has finished; called on the chief when `fit` has succeeded.

        The checksums of the weights before and after this `fit` are written to the directory, so
        that a later run can recognize the `fit`. The values of `History` are kept for later
        snapshots.

        If every `fit` has finished when the program ends successfully, the snapshots are deleted.
        They are kept if `delete_checkpoint` is False, or if they are of more epochs than this `fit`
        was to train. They are also kept if an earlier run was interrupted in a later `fit`, and
        this process ends without calling that `fit`.

        Args:
            lock: The lock of the directory; the checksums are written to its file.
        """
        program = program_of(self._path)
        for callback in self.training.callbacks:
            if isinstance(callback, keras.callbacks.History):
                found = {"epoch": list(callback.epoch), "history": without_others(callback.history)}
                program.histories[str(self._fit)] = found
        weights = self.training.checksum_of_weights()
        has_trained = not (program.has_passed or self._is_past)
        if has_trained and self._weights_before is not None and weights is not None:
            lock.note_fits(marks.ended(lock.fits, self._fit, self._weights_before, weights))
        reach(Site.FIT_END)
        program.end()
        is_cut_off = cut_off_after(self._fit, self._labels()) is not None
        if self._is_past:
            at_exit.leave(
                self._path,
                f"kfit: the snapshots in {self.backup_dir} are kept: they are of more epochs than "
                "this run was to train.",
            )
        elif is_cut_off or marks.is_cut_off_after(self._fit, lock.fits):
            at_exit.leave(self._path, message_of_one_left_out(self.backup_dir))
        else:
            at_exit.finish(self._path, lock.lock_count if self.delete_checkpoint else None)

    def _give_history(self) -> None:
        """Gives the `History` callback of a skipped `fit` the values of the earlier run.

        A `fit` is skipped if an earlier run has finished it and its final snapshot was deleted. For
        any other `fit` this method does nothing.
        """
        history, self._history = self._history, None
        for callback in self.training.callbacks:
            if history and isinstance(callback, keras.callbacks.History):
                callback.epoch, callback.history = history["epoch"], history["history"]

    def _beginning_at(self, snapshot: Snapshot) -> str:
        """Says where this `fit` goes on, or why it takes no step and how to train then."""
        place, kept = f"step {snapshot.about['step']}", snapshot.state
        going_on = f"going on from {self.backup_dir}, {place}"
        this = f"the {nth(self._fit)} `fit` of this program"
        epochs, progress = self.training.epochs, kept["progress"]
        epoch, step_in_epoch = progress["epoch"], progress["step_in_epoch"]
        if self._is_past:
            return (
                f"nothing to do: {self.backup_dir} is past `epochs`={epochs} ({place}, epoch "
                f"{epoch + (step_in_epoch > 0)}), and the model gets its weights. To train "
                f"{epochs} epoch{'s' * (epochs != 1)}, delete the directory"
            )
        is_finished = Label.of(snapshot.about).finished
        if "progress" in self.parts and epoch >= epochs:
            done = (
                f"{this} was finished in {self.backup_dir} ({place})"
                if is_finished
                else f"{self.backup_dir} holds the end of epoch {epoch} ({place}), and `epochs` is "
                f"{epochs}"
            )
            assert self._lock is not None
            if later := [mark for mark in self._lock.fits if mark.fit > self._fit]:
                interrupted = next((nth(mark.fit) for mark in later if mark.ended is None), None)
                going_on = (
                    f"The {interrupted} `fit` was interrupted, and goes on when it is called"
                    if interrupted
                    else "Later ones were begun, too"
                )
                return (
                    f"nothing to do: {done}, and the model gets its weights. {going_on}. To train "
                    "anew from the start, delete the directory"
                )
            return (
                f"nothing to do: {done}, and the model gets its weights. To go on, raise `epochs`; "
                "to train anew, delete the directory"
            )
        if not is_finished:
            return going_on
        if kept["stop_training"]:
            return (
                f"{going_on}: a callback has ended {this} there, and it takes no further step, "
                "unless that callback decides otherwise now. To train anew, delete the directory"
            )
        if kept["data"].get("ended"):
            return f"{going_on}: {this} has ended there with its data"
        return going_on

    def _hold_up(self) -> None:
        """Lets this `fit` take no step, since one before it was interrupted and is to go on."""
        self.training.interrupted = True
        if self.training.is_chief:
            warn_user(
                f"A callback has interrupted the `fit` before this one, and a later run of the "
                f"program is to go on with it from {self.backup_dir}. This is another `fit`, so it "
                "takes no step. End the program where `trainer.interrupted` is True."
            )

    def _tell_if_vanished(self, labels: Labels) -> None:
        start = int(os.environ.get("KFIT_GENERATION", "0"))
        if start and not labels:
            warn_user(
                f"This is start {start + 1} of the run, and {self.backup_dir} holds no snapshot: "
                "training begins at its first step. If an earlier start was ended before it had "
                "saved one, all is well. Otherwise they were deleted: use a directory that "
                "survives a restart of the tasks, and that nothing else clears."
            )

    def _refuse_if_replaced(self) -> None:
        """Raises an error on the chief if a newer start of this run has taken over the directory.

        Raises:
            DirectoryInUseError: In this case.
        """
        if self._lock is not None and not self._lock.is_held:
            raise DirectoryInUseError(
                f"{self.backup_dir} is now used by a newer start of this run, which replaces this "
                "one."
            )

    def _note_written(self, size: int | None, seconds: float) -> None:
        """Adds a snapshot to the report of the `fit`; called in the thread that has written it.

        Args:
            size: The size of the snapshot in bytes; None if nothing was written.
            seconds: How long it took.
        """
        if size is not None:
            self.training.account.saved(size, seconds)

    def _write(
        self, snapshot: Snapshot, callbacks: Sequence[keras.callbacks.Callback]
    ) -> int | None:
        """Writes a snapshot to the directory; called in a thread of its own, in the background.

        If the weights contain NaN or infinity, nothing is written. The first of several such states
        issues a warning.

        Args:
            snapshot: The snapshot.
            callbacks: The callbacks of the training, whose progress bar tells what was saved.

        Returns:
            The size of the snapshot in bytes; None if nothing was written.

        Raises:
            DirectoryInUseError: If the program was started again meanwhile, and the new process has
                taken over the directory.
            OSError: If the snapshot cannot be written.
        """
        assert self._store is not None
        assert self._lock is not None
        step = snapshot.about["step"]
        variables = snapshot.state["variables"]
        told, self._told_of_nan = self._told_of_nan, not is_finite(self.training.model, variables)
        if self._told_of_nan:
            if not told:
                warn_user(
                    f"The weights hold NaN or infinity at step {step}: neither this state is "
                    "saved, nor any later one until they are finite again. "
                    "`kfit.callbacks.RollBack` would go back and leave out the batch."
                )
            return None
        self._refuse_if_replaced()
        try:
            if self._written is not None and self._written not in self._store.names():
                warn_user(
                    f"{self.backup_dir}: the snapshot {self._written}, which this run has written, "
                    "has vanished: another program deletes files in the directory."
                )
            self._written = self._store.save(snapshot)
            self._written_step = step
            note_in_bars(callbacks, f"saved step {step}")
            return self._store.size(self._written)
        except OSError as error:
            self._refuse_if_replaced()  # the new process has deleted what was being written
            left = "the ones before it are untouched, and the same program resumes from them"
            if not os.path.isdir(self.backup_dir):
                left = "the directory has vanished, and all snapshots with it"
            raise OSError(
                error.errno,
                f"`backup_dir`: the snapshot of step {step} could not be written: "
                f"{error.strerror}; {left}",
                error.filename or self.backup_dir,
            ) from None


def _call_of(training: FitState, described: dict[Any, Any]) -> Any:
    """Returns what tells a call of `fit` from others: where it is in the program, and what it does.

    Without what hooks may have changed since an interruption.

    Args:
        training: The state of the `fit`.
        described: Its fingerprint.
    """
    changing = ("learning_rate", "attributes", "drawn_seed")
    kept = {section: found for section, found in described.items() if section not in changing}
    return lines_of_callers(), training.epochs, training.progress.epoch, kept
