"""Callbacks of `train_and_evaluate` on the tasks that train: they write checkpoints and stop.

A checkpoint here is a snapshot of `BackupAndRestore`. The end marker is a file that the chief
writes when training is over. The journal is the evaluator's record of its evaluations.
"""

from __future__ import annotations

from typing import Any

from kfit.callbacks.backup_and_restore import BackupAndRestore
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.store import SnapshotName
from kfit.evaluation.end_marker import EndMarker, remove_end_marker, this_run, write_end_marker
from kfit.evaluation.journal import evaluated_of, read_memory
from kfit.evaluation.specs import TrainSpec
from kfit.training.callback import Reason, TrainingCallback


class Checkpoints(BackupAndRestore):
    """A callback that writes checkpoints, resumes from them, and writes the end marker.

    The checkpoints are the snapshots of `BackupAndRestore`. A checkpoint that the evaluator has
    not evaluated yet is not deleted, however old it is.

    Args:
        spec: The specification of the training.
        journal_dir: The directory of the evaluator's journal, which records the last evaluated
            checkpoint. None if checkpoints need not be kept for an evaluator.
    """

    _counts_fits = False  # all calls of `fit` with this directory continue the same training

    def __init__(self, spec: TrainSpec, journal_dir: str | None) -> None:
        super().__init__(spec.checkpoint_dir, spec.save_freq, spec.keep, delete_checkpoint=False)
        self._target = spec.target
        self._journal_dir = journal_dir
        self._has_resumed = False

    def find_snapshot(self) -> Snapshot | None:
        """Returns the snapshot to resume from, or None; only the chief calls it.

        It also opens the directory, and removes the end marker of an earlier run from it.
        """
        self._has_resumed = False
        found = super().find_snapshot()
        assert self._store is not None
        if self._journal_dir is not None:
            self._store.is_needed = self._is_needed
        remove_end_marker(self.backup_dir)
        return found

    def resume(self, snapshot: Snapshot) -> None:
        """Requests that training resumes from the snapshot."""
        super().resume(snapshot)
        self._has_resumed = True

    def on_save_point(self, reason: Reason) -> None:
        """See `BackupAndRestore.on_save_point`; it calls `on_saved` in addition."""
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
        """Does nothing here; a subclass may override it.

        It is called on all tasks after a checkpoint was saved, except for one that is saved because
        of a signal. It is also called after training has resumed from a checkpoint.
        """

    def last(self) -> SnapshotName | None:
        """Returns the last checkpoint, or None if there is none. Only the chief may call it.

        If a checkpoint is being written, it waits until that one is complete.
        """
        return max(self.names(), default=None)

    def names(self) -> list[SnapshotName]:
        """Returns the checkpoints, the oldest first. Only the chief may call it.

        If a checkpoint is being written, it waits until that one is complete.
        """
        self._writer.wait()
        assert self._store is not None
        return self._store.names()

    def on_fit_exit(self, succeeded: bool) -> None:
        """See `BackupAndRestore.on_fit_exit`; the chief also writes the end marker.

        It does not if `fit` has failed.
        """
        training = self._training
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
        evaluated = evaluated_of(memory)
        return evaluated is None or name > evaluated


class StopAtStep(TrainingCallback):
    """A callback that ends training after a given step.

    Args:
        step: The step to stop after, counted from the first run of the training.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step
        self._has_stopped = False

    def steps_until_due(self) -> int | None:
        """See `TrainingCallback.steps_until_due`."""
        return max(1, self._step - self._at)  # 1 if training has begun beyond that step

    def is_due(self) -> bool:
        """Returns whether the step is reached."""
        return self._at >= self._step

    def on_due(self) -> None:
        """Ends training after the current step."""
        self.model.stop_training = self._has_stopped = True

    def state_dict(self) -> dict[str, Any]:
        """Returns a state that says whether this callback has ended training.

        If it has, a later run with a later `step` must continue training (see `load_state_dict`).
        """
        return {"has_stopped": self._has_stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state, and sets whether training stops.

        If this callback had ended training, training continues if `step` is now a later one. It
        stops if that step is already reached.
        """
        is_over = self._at >= self._step
        if is_over or state["has_stopped"]:
            self.model.stop_training = is_over
        self._has_stopped = is_over

    @property
    def _at(self) -> int:
        assert self.training is not None
        return self.training.progress.step
