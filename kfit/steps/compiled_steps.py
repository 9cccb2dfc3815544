"""The graphs of one model: each made when first needed, all dropped when the model has changed."""

from __future__ import annotations

from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.parameter_server import ParameterServer
from kfit.distribute.placement import Placement
from kfit.distribute.strategy import Strategy
from kfit.exactness.own_code import overrides
from kfit.heartbeat import Heartbeat
from kfit.internals.models import loss_tracker
from kfit.steps.async_execution import ScheduledExecution, ScheduledPrediction
from kfit.steps.execution import Execution, StepExecutor
from kfit.steps.metrics import read_metrics
from kfit.steps.prediction import Prediction, Predictor


class Graphs:
    """Holds the executions of a model's steps, so that no call traces what an earlier one did.

    Args:
        model: The model.
        strategy: The adapter.
        placement: What puts the model's variables on the devices.
        heartbeat: What tells the supervisor of this task that a graph is being compiled.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Strategy,
        placement: Placement,
        heartbeat: Heartbeat,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._placement = placement
        self._heartbeat = heartbeat
        self._made: dict[str, Any] = {}
        self._made_for: Any = None

    def has_default(self, step: str) -> bool:
        """Whether the model's step, and the metrics it returns, are Keras' own."""
        return not any(overrides(self._model, name) for name in (step, "compute_metrics"))

    def execution(self, step: str) -> StepExecutor:
        """The execution of `train_step` or `test_step`."""
        self._forget_if_changed()
        if step not in self._made:
            self._made[step] = self._execution(step)
        execution: StepExecutor = self._made[step]
        return execution

    def _execution(self, step: str) -> StepExecutor:
        model_step, default_step = getattr(self._model, step), self.has_default(step)
        if isinstance(self._strategy, ParameterServer):
            return ScheduledExecution(
                self._model,
                model_step,
                self._strategy,
                self._heartbeat,
                read_metrics=self.read_metrics,
                default_step=default_step,
                train=step == "train_step",
            )
        return Execution(
            self._model,
            model_step,
            self._strategy,
            default_step=default_step,
            train=step == "train_step",
            heartbeat=self._heartbeat,
        )

    def prediction(self) -> Predictor:
        """The execution of `predict_step`."""
        self._forget_if_changed()
        if "predict_step" not in self._made:
            self._made["predict_step"] = (
                ScheduledPrediction(self._model, self._strategy, self._heartbeat)
                if isinstance(self._strategy, ParameterServer)
                else Prediction(self._model, self._strategy)
            )
        prediction: Predictor = self._made["predict_step"]
        return prediction

    def read_metrics(self) -> dict[str, Any]:
        """The metrics of all replicas; on several workers a collective."""
        self._forget_if_changed()
        if "metrics" not in self._made:
            # A partial function, for TensorFlow to count the traces of each by itself.
            read = partial(read_metrics, self._model, self._strategy)
            self._made["metrics"] = tf.function(read, autograph=False)
        with self._strategy.scope():
            logs: dict[str, Any] = self._made["metrics"]()
        return logs

    def _forget_if_changed(self) -> None:
        """Drops the graphs when the model was compiled anew, or has other variables.

        As in Keras, what is frozen or thawed counts from the next `compile` on (`frozen.py`).
        """
        now = (
            # Private: `compile` makes a new one each time; no public attribute tells of it.
            loss_tracker(self._model),
            self._model.run_eagerly,
            self._model.jit_compile,
            self._strategy.reduction,
            self._placement.generation,
            getattr(self._model, "optimizer", None),
            [id(variable) for variable in self._model.variables],
        )
        if self._made_for != now:
            self._made.clear()
            self._made_for = now
