"""Callbacks that `train_and_evaluate` passes to `fit`: they write checkpoints and end training.

A checkpoint here is a snapshot of `BackupAndRestore`: the whole state of training after one step.
The end marker is a file that the chief writes when training is over. The journal is a directory of
files in which evaluations are recorded.
"""

from __future__ import annotations

import math
from typing import Any

from kfit.callbacks.backup_and_restore import BackupAndRestore
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.store import SnapshotName
from kfit.evaluation.end_marker import EndMarker, remove_end_marker, this_run, write_end_marker
from kfit.evaluation.journal import evaluated_of, read_memory
from kfit.evaluation.specs import TrainSpec
from kfit.evaluation.training_id import write_training_id
from kfit.training.callback import Reason, TrainingCallback


class Checkpoints(BackupAndRestore):
    """A callback of `train_and_evaluate` that writes checkpoints, and resumes training from them.

    The checkpoints are the snapshots of `BackupAndRestore`. But a checkpoint that the evaluator has
    not evaluated yet is not deleted, however old the checkpoint is. When training is over, this
    callback also writes the end marker, a file that tells the evaluator that no more checkpoints
    will come.

    Args:
        spec: A specification that says where and when to write checkpoints.
        journal_dir: The directory in which the evaluator records which checkpoint it has evaluated
            last. None if checkpoints need not be kept for an evaluator.
    """

    _counts_fits = False  # all calls of `fit` with this directory continue the same training

    def __init__(self, spec: TrainSpec, journal_dir: str | None) -> None:
        super().__init__(spec.checkpoint_dir, spec.save_freq, spec.keep, delete_checkpoint=False)
        self._target = spec.target
        self._journal_dir = journal_dir
        self._has_resumed = False
        self._training_id: str | None = None

    def find_snapshot(self) -> Snapshot | None:
        """Returns the snapshot that training resumes from, or None.

        It is called before training, only on the chief. It also removes the end marker of an
        earlier run, since training is not over any more. If there is no checkpoint, it writes a new
        training ID.
        """
        self._has_resumed = False
        found = super().find_snapshot()
        assert self._store is not None
        if self._journal_dir is not None:
            self._store.is_needed = self._is_needed
        remove_end_marker(self.backup_dir)
        self._training_id = write_training_id(self.backup_dir, begins=not self._store.names())
        return found

    def resume(self, snapshot: Snapshot) -> None:
        """Requests that training resumes from a snapshot.

        It is called before training on all tasks. It also notes that training resumes, since
        `on_save_point` then calls `on_saved` before the first step.

        Args:
            snapshot: What `find_snapshot` has returned on the chief.
        """
        super().resume(snapshot)
        self._has_resumed = True

    def on_save_point(self, reason: Reason) -> None:
        """Saves a checkpoint if one is due, and calls `on_saved` after it was saved.

        It is called on all tasks at each save point: a place where training may be saved.
        `BackupAndRestore.on_save_point` decides whether a checkpoint is due. There are two special
        cases:

        - At the save point before the first step no checkpoint is saved. If training has resumed
          from a checkpoint, `on_saved` is called for this checkpoint.
        - If training is being interrupted, a checkpoint is saved, but `on_saved` is not called.

        Args:
            reason: Which save point this is: "begin" before the first step, "step" if a checkpoint
                is due after a step, "epoch" at the end of an epoch, "stop" if training is
                interrupted.
        """
        if reason == "begin":
            # The state that training resumes from is a checkpoint already.
            if self._has_resumed:
                self._mark_saved()
                self.on_saved()
            return
        before = self._saved
        super().on_save_point(reason)
        if reason != "stop" and self._saved != before:
            self.on_saved()

    def on_saved(self) -> None:
        """Does nothing here; a subclass overrides it to evaluate the checkpoint.

        It is called on all tasks after a checkpoint was saved, and after training has resumed from
        a checkpoint. It is not called if the checkpoint was saved because training is being
        interrupted, such as by SIGTERM.
        """

    def last(self) -> SnapshotName | None:
        """Returns the name of the last checkpoint, or None if there is no checkpoint.

        A folder with such a name counts only if its manifest is that of a checkpoint. If a
        checkpoint is being written, it waits until the checkpoint is complete. Only the chief may
        call it.
        """
        names, store = self.names(), self._store
        assert store is not None
        return next((name for name in reversed(names) if store.about(name) is not None), None)

    def names(self) -> list[SnapshotName]:
        """Returns the names of the checkpoints, the oldest first.

        If a checkpoint is being written, it waits until the checkpoint is complete. Only the chief
        may call it.
        """
        self._writer.wait()
        assert self._store is not None
        return self._store.names()

    def on_fit_exit(self, succeeded: bool) -> None:
        """Writes the end marker on the chief, and unlocks the directory of the checkpoints.

        It is called when `fit` is left, even if `fit` fails. The end marker is a file that tells
        the evaluator that training has ended or was interrupted. If `fit` has failed, no end marker
        is written.

        Args:
            succeeded: Whether training came to its end.
        """
        training = self.training
        try:
            is_over = succeeded or training.interrupted
            if training.is_chief and self._store is not None and is_over:
                last = self.last()
                name = None if last is None else str(last)
                run = this_run() or training.run
                marker = EndMarker(self._target, training.interrupted, name, run)
                write_end_marker(self.backup_dir, marker)
        finally:
            super().on_fit_exit(succeeded)

    def _is_needed(self, name: SnapshotName) -> bool:
        assert self._journal_dir is not None
        try:
            memory = read_memory(self._journal_dir)
        except (OSError, ValueError):
            return True  # all checkpoints are kept; the evaluator will report the bad journal
        evaluated = evaluated_of(memory, self._training_id)
        return evaluated is None or name > evaluated


class StopAtStep(TrainingCallback):
    """A callback that ends training after a given number of steps (`TrainSpec.max_steps`).

    An epoch in which it has ended an earlier run counts as a whole one. So when training resumes,
    the callback adds the epochs that are then missing.

    Args:
        step: The number of steps to train, including those of earlier runs.
        adds_epochs: Whether only the steps end training, and not a number of epochs.
    """

    def __init__(self, step: int, *, adds_epochs: bool = True) -> None:
        super().__init__()
        self._step = step
        self._adds_epochs = adds_epochs
        self._has_stopped = False

    def on_restored(self) -> None:
        """Adds the epochs that the steps need from here on."""
        training = self.training
        steps, in_pass = training.batches.steps, training.batches.length
        if self._adds_epochs and steps:
            # An epoch ends where the data ends, so the last epoch of a pass may be shorter.
            in_epoch = in_pass / math.ceil(in_pass / steps) if in_pass else steps
            left = self._step - self._at + training.progress.step_in_epoch
            needed = training.progress.epoch + math.ceil(left / in_epoch)
            training.epochs = max(training.epochs, needed)
            self.params["epochs"] = training.epochs  # what the progress bar shows

    def steps_until_due(self) -> int | None:
        """Returns the number of steps until training ends, at least 1; it is never None.

        kfit takes several steps in a graph call, but no graph call goes beyond the returned number.
        """
        return max(1, self._step - self._at)  # 1 if training has begun beyond that step

    def is_due(self) -> bool:
        """Returns whether training has taken the given number of steps."""
        return self._at >= self._step

    def on_due(self) -> None:
        """Ends training after the current step."""
        self.model.stop_training = self._has_stopped = True

    def state_dict(self) -> dict[str, Any]:
        """Returns a dict that says whether this callback has ended training.

        The dict is saved in each checkpoint. `load_state_dict` needs it if training is run again
        with a larger number of steps: training continues if this callback, and not another one, had
        ended it.
        """
        return {"has_stopped": self._has_stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Sets `model.stop_training`, if necessary, when training resumes from a checkpoint.

        The attribute becomes True if training has already taken the given number of steps. It
        becomes False if this callback had ended training in an earlier run with a smaller number of
        steps, so that training continues. Otherwise it is not changed, since another callback may
        have ended training.

        Args:
            state: The dict that `state_dict` returned when the checkpoint was saved.
        """
        is_over = self._at >= self._step
        if is_over or state["has_stopped"]:
            self.model.stop_training = is_over
        self._has_stopped = is_over

    @property
    def _at(self) -> int:
        return self.training.progress.step
