"""Evaluation on the tasks that train, between training steps: used if there is no evaluator."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint.snapshot import Snapshot
from kfit.checkpoint.store import SnapshotName
from kfit.distribute.strategy import Strategy
from kfit.evaluation.checkpoint_poller import is_repeated
from kfit.evaluation.checkpoints import Checkpoints
from kfit.evaluation.evaluator import as_line, evaluation_of
from kfit.evaluation.journal import Evaluation, Journal
from kfit.evaluation.specs import EvalSpec, TrainSpec
from kfit.internals.keras_methods import own_method
from kfit.trainer import Trainer
from kfit.training.evaluate_aside import evaluate_aside, set_aside
from kfit.training.save_points import PeerFailedError


class EvaluatedCheckpoints(Checkpoints):
    """A callback that writes checkpoints, and evaluates a checkpoint right after it was saved.

    A checkpoint is not evaluated if the previous evaluation began less than `throttle_secs` of
    `eval_spec` before; the last checkpoint always is. `train_and_evaluate` passes the callback to
    `fit` if there is no separate evaluator. All tasks evaluate together, and the chief records the
    result. If a run is killed after it has written a checkpoint
    and before it has recorded the evaluation, the next run begins with this evaluation.

    Args:
        trainer: The trainer of the model.
        train_spec: A specification that says where and when to write checkpoints.
        eval_spec: The data to evaluate on, how often to evaluate, and what to export.

    Attributes:
        evaluations: The records of all evaluations so far, including those of earlier runs. The
            list is empty on tasks other than the chief.
    """

    def __init__(self, trainer: Trainer, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        super().__init__(train_spec, journal_dir=None)
        self._trainer = trainer
        self._train_spec = train_spec
        self._eval_spec = eval_spec
        self._journal: Journal | None = None
        self._began: float | None = None
        self.evaluations: list[Evaluation] = []

    def find_snapshot(self) -> Snapshot | None:
        """Returns the snapshot that training resumes from, or None.

        It is called before training, only on the chief. Before it looks for the snapshot, it opens
        the journal: the files in which all evaluations are recorded.
        """
        self._journal = open_journal(self._train_spec, self._eval_spec)
        found = super().find_snapshot()
        self._journal.belong_to(self._training_id)
        self.evaluations = self._journal.evaluations
        return found

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks before the first step that each exporter can work with the model's metrics.

        If a check fails on any task, all tasks raise an error.
        """
        super().on_train_begin(logs)
        error = None
        try:
            names = _metric_names(self.training.model, self.training.strategy)
            if names is not None:
                for exporter in self._eval_spec.each_exporter:
                    exporter.check(self.training.model, names)
        except Exception as raised:
            error = raised
        self._fail_together(
            error,
            ValueError(
                "`exporters` of another task's `eval_spec` cannot export what is evaluated; its "
                "own output says why. Give all tasks the same `eval_spec`."
            ),
        )

    def on_saved(self) -> None:
        """Evaluates the checkpoint that was just saved, if an evaluation is due.

        The chief decides whether it is due: no weights are evaluated twice, and only the last
        evaluation may begin earlier than `throttle_secs` after the beginning of the previous one.
        All tasks then evaluate together, so all tasks must call this method. The chief records the
        result and calls the exporters.

        Raises:
            PeerFailedError: On the other tasks, if recording or exporting has failed on the chief.
        """
        training = self.training
        name = self._due() if training.is_chief else None
        if not training.strategy.host_collectives.any_true(name is not None):
            return
        self._began = time.monotonic()
        with set_aside(training, only_evaluates=self._only_evaluates):
            metrics = self._evaluated()
            error = None if name is None else self._recorded(name, metrics)
        self._fail_together(
            error,
            PeerFailedError(
                "The chief could not write down or export what it has evaluated; its own output "
                "says why. This task stops with it."
            ),
        )

    def on_fit_exit(self, succeeded: bool) -> None:
        """Closes the journal (the record of the evaluations) when `fit` is left.

        `Checkpoints.on_fit_exit` is called before: on the chief it writes the end marker.

        Args:
            succeeded: Whether training came to its end.
        """
        try:
            super().on_fit_exit(succeeded)
        finally:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    @property
    def _only_evaluates(self) -> bool:
        """Whether an evaluation runs no code of the user's that may change the model."""
        spec, graphs = self._eval_spec, self.training.call.graphs
        runs_own = self._own_evaluate is not None or not graphs.has_default("test_step")
        return not (runs_own or spec.each_callback or spec.each_exporter)

    @property
    def _own_evaluate(self) -> Callable[..., dict[str, Any]] | None:
        """The trainer's `evaluate` if the model itself defines one, which it calls; or None."""
        has_own = own_method(self._trainer.model, "evaluate") is not None
        return self._trainer.evaluate if has_own else None

    def _evaluated(self) -> dict[str, Any]:
        """Evaluates the model as it is; a collective, which all tasks must call."""
        spec = self._eval_spec
        return evaluate_aside(
            self.training,
            spec.data(),
            batch_size=spec.batch_size,
            steps=spec.steps,
            callbacks=list(spec.each_callback),
            by_model=self._own_evaluate,
        )

    def _recorded(self, name: SnapshotName, metrics: dict[str, Any]) -> Exception | None:
        """Records an evaluation on the chief, and calls the exporters.

        Args:
            name: The name of the checkpoint that was evaluated.
            metrics: The loss and the metrics by name.

        Returns:
            The error that this has raised, which is to be raised on all tasks; None if it has not.
        """
        assert self._journal is not None
        assert self._began is not None
        place, seconds = self.training.progress.state_dict(), time.monotonic() - self._began
        found = evaluation_of(name, place, metrics, seconds)
        try:
            self._journal.write(name, found, self.training.model)
        except Exception as raised:
            return raised
        if self._eval_spec.verbose:
            print(as_line(found), flush=True)
        return None

    def _fail_together(self, error: Exception | None, elsewhere: Exception) -> None:
        """Raises an error on all tasks if any task has failed.

        So no task goes on and waits for a task that has failed. All tasks must call this method,
        whether they have failed or not.

        Args:
            error: The error of this task, or None if this task has not failed.
            elsewhere: The error to raise if this task has not failed, but another task has.
        """
        if self.training.strategy.host_collectives.any_true(error is not None):
            raise error or elsewhere

    def _due(self) -> SnapshotName | None:
        """Returns the checkpoint of the current step if it must be evaluated now, otherwise None.

        Only the chief may call it, since only the chief knows which checkpoints were written and
        evaluated.
        """
        assert self._journal is not None
        name, evaluated = self.last(), self._journal.evaluated
        # There is no checkpoint of this step if its weights hold NaN or infinity.
        if name is None or name.step != self.training.progress.step:
            return None
        if evaluated is not None and name <= evaluated:
            return None
        if is_repeated(name, evaluated, self.names()):
            return None
        is_last = self.training.is_over
        if not is_last and self._began is not None:
            since = time.monotonic() - self._began
            return name if since >= self._eval_spec.throttle_secs else None
        return name


def open_journal(train_spec: TrainSpec, eval_spec: EvalSpec) -> Journal:
    """Opens the journal, the files in which the evaluations of a training are recorded.

    The directory of the journal is locked until the journal is closed.

    Args:
        train_spec: A specification with the directory of the training.
        eval_spec: A specification with the name of the evaluation and the exporters.
    """
    model_dir = train_spec.model_dir
    directory, export_dir = eval_spec.directory(model_dir), eval_spec.export_directory(model_dir)
    return Journal(directory, export_dir, eval_spec.each_exporter)


def _metric_names(model: keras.Model, strategy: Strategy) -> Collection[str] | None:
    """Returns the names of the metrics that `evaluate` will return.

    They are found before training by tracing the metrics' results, without computing values. All
    tasks must call this function, since the traced code may contain collectives.

    Args:
        model: The compiled model.
        strategy: The strategy under whose scope the metrics are traced.

    Returns:
        The names; None if the model overrides `test_step` or `compute_metrics`, since the names are
        then not known before the first evaluation.
    """
    steps = ("test_step", "compute_metrics")
    if any(getattr(type(model), name) is not getattr(keras.Model, name) for name in steps):
        return None
    with strategy.scope():
        traced = tf.function(model.get_metrics_result, autograph=False).get_concrete_function()
    return frozenset(traced.structured_outputs)
