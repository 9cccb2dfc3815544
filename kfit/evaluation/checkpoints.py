"""The checkpoints of a training that is evaluated: the part of the tasks that train."""

from __future__ import annotations

from typing import Any

from kfit.callbacks.backup_and_restore import BackupAndRestore
from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.store import SnapshotName
from kfit.evaluation.end_marker import Ending, take_back_ending, this_run, write_ending
from kfit.evaluation.journal import evaluated_of, read_memory
from kfit.evaluation.specs import TrainSpec
from kfit.training.callback import Reason, TrainingCallback


class Checkpoints(BackupAndRestore):
    """Writes checkpoints, goes on from them, and says when training is over.

    They are the verified snapshots of `BackupAndRestore`. One that the evaluator has not come to
    yet is not deleted, however old it is.

    Args:
        spec: The training.
        journal_dir: Directory of the journal of the evaluator, which tells how far it is; None
            where nobody has to be waited for.
    """

    _counts_fits = False  # the directory is of one training, however often it is called on to go on

    def __init__(self, spec: TrainSpec, journal_dir: str | None) -> None:
        super().__init__(spec.checkpoint_dir, spec.save_freq, spec.keep, delete_checkpoint=False)
        self._target = spec.target
        self._journal_dir = journal_dir
        self._has_resumed = False

    def find_snapshot(self) -> Snapshot | None:
        """Opens the directory, and takes back that an earlier training there was over."""
        self._has_resumed = False
        found = super().find_snapshot()
        assert self._store is not None
        if self._journal_dir is not None:
            self._store.is_needed = self._is_needed
        take_back_ending(self.backup_dir)
        return found

    def resume(self, snapshot: Snapshot) -> None:
        """Has training go on from the snapshot."""
        super().resume(snapshot)
        self._has_resumed = True

    def on_save_point(self, reason: Reason) -> None:
        """Saves, if it is time to."""
        if reason == "begin":
            # What training goes on from is saved already.
            if self._has_resumed:
                self._mark_saved()
                self.on_saved()
            return
        before = self._saved
        super().on_save_point(reason)
        if reason != "stop" and self._saved != before:
            self.on_saved()

    def on_saved(self) -> None:
        """Called on all tasks where training is at a checkpoint, new or gone on from."""

    def last(self) -> SnapshotName | None:
        """The last checkpoint; on the chief."""
        return max(self.names(), default=None)

    def names(self) -> list[SnapshotName]:
        """The checkpoints, the oldest first, when what is being written is there; on the chief."""
        self._writer.wait()
        assert self._store is not None
        return self._store.names()

    def on_fit_exit(self, succeeded: bool) -> None:
        """Says that training is over, when it is."""
        training = self._training
        try:
            is_over = succeeded or training.interrupted
            if training.is_chief and self._store is not None and is_over:
                last = self.last()
                name = None if last is None else str(last)
                run = this_run() or training.run
                ending = Ending(self._target, training.interrupted, name, run)
                write_ending(self.backup_dir, ending)
        finally:
            super().on_fit_exit(succeeded)

    def _is_needed(self, name: SnapshotName) -> bool:
        assert self._journal_dir is not None
        try:
            memory = read_memory(self._journal_dir)
        except (OSError, ValueError):
            return True  # it is the evaluator's to say what is wrong; training keeps all for it
        evaluated = evaluated_of(memory)
        return evaluated is None or name > evaluated


class StopAtStep(TrainingCallback):
    """Ends training at a step, which counts from the first run of the training.

    Args:
        step: The step.
    """

    def __init__(self, step: int) -> None:
        super().__init__()
        self._step = step
        self._has_stopped = False

    def steps_until_due(self) -> int | None:
        """See `TrainingCallback.steps_until_due`."""
        return max(1, self._step - self._at)  # a run that begins beyond it takes no long execution

    def is_due(self) -> bool:
        """Whether the step is reached."""
        return self._at >= self._step

    def on_due(self) -> None:
        """Ends training."""
        self.model.stop_training = self._has_stopped = True

    def state_dict(self) -> dict[str, Any]:
        """Whether this has ended training, for a later run with a later step."""
        return {"has_stopped": self._has_stopped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Has training that this had ended go on, where it is to end later now."""
        is_over = self._at >= self._step
        if is_over or state["has_stopped"]:
            self.model.stop_training = is_over
        self._has_stopped = is_over

    @property
    def _at(self) -> int:
        assert self.training is not None
        return self.training.progress.step
