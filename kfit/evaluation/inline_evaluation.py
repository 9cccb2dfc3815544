"""Evaluation between training steps, on the tasks that train: used if there is no evaluator."""

from __future__ import annotations

import time
from collections.abc import Collection
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
from kfit.training.evaluate_aside import evaluate_aside
from kfit.training.save_points import PeerFailedError


class EvaluatedCheckpoints(Checkpoints):
    """A callback that writes checkpoints, and evaluates each right after it was saved.

    All tasks evaluate together. The chief records the result after the checkpoint is written. If a
    run is killed between the two, the next run first does the missing evaluation.

    Args:
        train_spec: The specification of the training.
        eval_spec: The data to evaluate on, and how often to do so.

    Attributes:
        evaluations: All evaluations so far, including those of earlier runs. Empty on tasks other
            than the chief.
    """

    def __init__(self, train_spec: TrainSpec, eval_spec: EvalSpec) -> None:
        super().__init__(train_spec, journal_dir=None)
        self._train_spec = train_spec
        self._eval_spec = eval_spec
        self._journal: Journal | None = None
        self._began: float | None = None
        self.evaluations: list[Evaluation] = []

    def find_snapshot(self) -> Snapshot | None:
        """Returns the snapshot to resume from, or None; only the chief calls it.

        It also opens the journal, which is the record of all evaluations, and the directory of the
        checkpoints.
        """
        self._journal = open_journal(self._train_spec, self._eval_spec)
        self.evaluations = self._journal.evaluations
        return super().find_snapshot()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Checks the exporters before the first step. If they fail on one task, all tasks raise."""
        super().on_train_begin(logs)
        error = None
        try:
            names = _metric_names(self._training.model, self._training.strategy)
            if names is not None:
                for exporter in self._eval_spec.each_exporter:
                    exporter.check(self._training.model, names)
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
        """Evaluates the checkpoint that was just saved, and records and exports the result.

        It does nothing if the checkpoint was evaluated before, or if the last evaluation is too
        recent. The chief decides that. It is a collective: all tasks must call it.
        """
        training = self._training
        name = self._due() if training.is_chief else None
        if not training.strategy.host_collectives.any_true(name is not None):
            return
        began = self._began = time.monotonic()
        x, y, sample_weight = self._eval_spec.data()
        metrics = evaluate_aside(
            training,
            x,
            y,
            sample_weight,
            batch_size=self._eval_spec.batch_size,
            steps=self._eval_spec.steps,
            callbacks=list(self._eval_spec.callbacks),
        )
        error = None
        if name is not None and self._journal is not None:
            place = training.progress.state_dict()
            found = evaluation_of(name, place, metrics, time.monotonic() - began)
            try:
                self._journal.write(name, found, training.model)
            except Exception as raised:
                error = raised
            if error is None and self._eval_spec.verbose:
                print(f"\n{as_line(found)}", flush=True)
        self._fail_together(
            error,
            PeerFailedError(
                "The chief could not write down or export what it has evaluated; its own output "
                "says why. This task stops with it."
            ),
        )

    def on_fit_exit(self, succeeded: bool) -> None:
        """See `Checkpoints.on_fit_exit`; it also closes the journal."""
        try:
            super().on_fit_exit(succeeded)
        finally:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def _fail_together(self, error: Exception | None, elsewhere: Exception) -> None:
        """Raises an error on all tasks if any task has failed, so that no task waits for it.

        It is a collective: all tasks must call it, whether they have failed or not.

        Args:
            error: The error of this task, or None.
            elsewhere: The error to raise on a task that has not failed itself.
        """
        if self._training.strategy.host_collectives.any_true(error is not None):
            raise error or elsewhere

    def _due(self) -> SnapshotName | None:
        """Returns the checkpoint of the current step if it must be evaluated now, otherwise None.

        Only the chief may call it.
        """
        assert self._journal is not None
        name, evaluated = self.last(), self._journal.evaluated
        # There is no checkpoint of this step if its weights hold NaN or infinity.
        if name is None or name.step != self._training.progress.step:
            return None
        if evaluated is not None and name <= evaluated:
            return None
        if is_repeated(name, evaluated, self.names()):
            return None
        is_last = self._training.is_over
        if not is_last and self._began is not None:
            since = time.monotonic() - self._began
            return name if since >= self._eval_spec.throttle_secs else None
        return name


def open_journal(train_spec: TrainSpec, eval_spec: EvalSpec) -> Journal:
    """Opens the journal of a training's evaluations, and locks its directory until it is closed."""
    directory = eval_spec.directory(train_spec.model_dir)
    return Journal(directory, train_spec.export_dir, eval_spec.each_exporter)


def _metric_names(model: keras.Model, strategy: Strategy) -> Collection[str] | None:
    """Returns the names of the metrics that `evaluate` will return, without reading their values.

    All tasks must call it, since tracing the metrics may involve collectives.

    Returns:
        The names; None if the model overrides `test_step` or `compute_metrics`, since they are then
        not known before the first evaluation.
    """
    steps = ("test_step", "compute_metrics")
    if any(getattr(type(model), name) is not getattr(keras.Model, name) for name in steps):
        return None
    with strategy.scope():
        traced = tf.function(model.get_metrics_result, autograph=False).get_concrete_function()
    return frozenset(traced.structured_outputs)
