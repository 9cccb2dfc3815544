"""A cache of the compiled steps of a model, which is emptied if the model has changed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial, wraps
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.parameter_server import ParameterServer
from kfit.distribute.placement import Placement
from kfit.distribute.strategy import Strategy
from kfit.exactness.own_code import overrides
from kfit.heartbeat import Heartbeat
from kfit.internals.keras_functions import mark_of_function, method_of_function
from kfit.internals.models import last_compile, runs_eagerly
from kfit.steps.async_execution import ScheduledExecution, ScheduledPrediction
from kfit.steps.execution import Execution, StepExecutor
from kfit.steps.frozen import Flags, flags_of
from kfit.steps.metrics import read_metrics, settings_of_results
from kfit.steps.prediction import Prediction, Predictor


class Compiled(NamedTuple):
    """What shows that a model was compiled again, to be compared with the same of another time.

    Attributes:
        settings: What tells one `compile` from another (`last_compile`), `run_eagerly` and
            `jit_compile`.
        train_function: The mark of the function that Keras would have traced of the train step.
        flags: `trainable` of each layer and each variable, by its id.
    """

    settings: tuple[Any, ...]
    train_function: Any
    flags: Flags

    def differs_from(self, before: Compiled) -> bool:
        """Returns whether the model was compiled again, or trains other variables.

        `make_train_function(force=True)` counts if it has let a frozen layer train, or vice versa.
        """
        is_made_anew = self.train_function != before.train_function
        trains_others = is_made_anew and self.flags != before.flags
        return self.settings != before.settings or trains_others


class Graphs:
    """A cache of a model's traced steps, so that a later `fit` need not trace them again.

    The cache contains executors. An executor runs one kind of step (training, evaluation or
    prediction), and keeps the graphs that were traced for this kind. Each executor is created at
    its first use. All executors are dropped if the model has changed, for example if it was
    compiled again. An executor is dropped if the program has had its step traced anew, as by
    `make_train_function(force=True)`.

    Args:
        model: The model whose steps are run.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the steps run.
        placement: Moves the model's variables to the strategy's devices. When it has replaced
            variables there, the steps must be traced again.
        heartbeat: Reports to this task's supervisor that a graph is being traced, so that the
            tracing is not taken for a hang.
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
        self._made_for: tuple[Any, ...] | None = None
        self._variables: list[weakref.ref[Any]] = []
        self._marks: dict[str, Any] = {}
        self._nesting: set[str] = set()

    def has_default(self, step: str) -> bool:
        """Returns whether the model overrides neither the step nor `compute_metrics`.

        If so, the step is Keras' own, and its logs are exactly the model's metrics.

        Args:
            step: The name of the step, such as "train_step".
        """
        return not any(overrides(self._model, name) for name in (step, "compute_metrics"))

    @property
    def compiled(self) -> Compiled:
        """What `compile` and `make_train_function(force=True)` change."""
        mark = mark_of_function(self._model, "train_step")
        return Compiled(self._settings(), mark, flags_of(self._model))

    def _settings(self) -> tuple[Any, ...]:
        """Returns what `compile` changes (`Compiled.settings`)."""
        model = self._model
        return last_compile(model), model.run_eagerly, model.jit_compile

    def returns_nested(self, step: str) -> bool:
        """Returns whether the step has returned a dict with another dict as a value.

        Keras logs the metrics if the step returns values with exactly their names, and otherwise
        what the step returns. A dict within the dict counts as one name.

        Args:
            step: The name of the step, which has been traced or run.
        """
        return step in self._nesting

    def execution(self, step: str) -> StepExecutor:
        """Returns the executor: the object that runs the model's `train_step` or `test_step`.

        The executor of an earlier call is returned again, with its graphs, unless the model has
        changed.

        Args:
            step: "train_step" or "test_step".
        """
        self._forget_if_changed()
        self._forget_if_made_anew(step)
        if step not in self._made:
            self._made[step] = self._execution(step)
        execution: StepExecutor = self._made[step]
        return execution

    def _execution(self, step: str) -> StepExecutor:
        model_step = method_of_function(self._model, step)
        default_step = self.has_default(step) and model_step == getattr(self._model, step)
        if not default_step:
            model_step = self._checked(step, model_step)
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

    def _checked(self, step: str, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Returns the model's own step, with a check of what it returns.

        It must return a dict, as in Keras. A dict within the dict is noted for `returns_nested`.
        """

        @wraps(original)
        def taken(data: Any) -> Any:
            outputs = original(data)
            if not isinstance(outputs, Mapping) or not outputs:
                raise ValueError(
                    f"`{step}` of the model {self._model.name!r} must return a dict of the values "
                    "to be logged, at least one, such as `self.get_metrics_result()` or "
                    f'`{{"loss": loss}}`. It returned {outputs!r}.'
                    + (" Is its `return` missing?" if outputs is None else "")
                )
            if any(isinstance(value, Mapping) for value in outputs.values()):
                self._nesting.add(step)
            return dict(outputs)

        return taken

    def prediction(self) -> Predictor:
        """Returns the executor: the object that runs the model's `predict_step`.

        The executor of an earlier call is returned again, with its graphs, unless the model has
        changed.
        """
        self._forget_if_changed()
        self._forget_if_made_anew("predict_step")
        if "predict_step" not in self._made:
            self._made["predict_step"] = (
                ScheduledPrediction(self._model, self._strategy, self._heartbeat)
                if isinstance(self._strategy, ParameterServer)
                else Prediction(self._model, self._strategy)
            )
        prediction: Predictor = self._made["predict_step"]
        return prediction

    def read_metrics(self) -> dict[str, Any]:
        """Returns the results of the model's metrics over the examples of all replicas, by name.

        The examples are those since the metrics were reset. On several workers this function is a
        collective: all tasks must call it.
        """
        self._forget_if_changed()
        # A result that Python computes would stay in a graph as it was when it was traced.
        settings = None if runs_eagerly(self._model) else settings_of_results(self._model)
        if settings is None:
            with self._strategy.scope():
                return read_metrics(self._model, self._strategy)
        made_for, graph = self._made.get("metrics", (None, None))
        if made_for != settings:
            # A new `partial` each time: TensorFlow warns if one Python function is traced often.
            read = partial(read_metrics, self._model, self._strategy)
            graph = tf.function(read, autograph=False)
            self._made["metrics"] = settings, graph
        with self._strategy.scope():
            logs: dict[str, Any] = graph()
        return logs

    def _forget_if_changed(self) -> None:
        """Drops all graphs if the model has changed since they were traced.

        Called before each use of the cache. The model has changed if it was compiled again, if one
        of its variables or its optimizer was replaced, or if a setting such as `run_eagerly` or
        `jit_compile` has another value. As in Keras, other changes drop no graph, but take effect
        at the next `compile`: a layer that is frozen or thawed, and a variable that is added.
        """
        made_for = self._settings(), self._strategy.reduction
        present = {id(variable): variable for variable in self._placement.tf_variables()}
        is_gone = any(id(variable()) not in present for variable in self._variables)
        if made_for != self._made_for or is_gone:
            self._made.clear()
            self._nesting.clear()
            self._made_for = made_for
        if is_gone or len(present) != len(self._variables):
            self._variables = [weakref.ref(variable) for variable in present.values()]

    def _forget_if_made_anew(self, step: str) -> None:
        """Drops the graphs of a step if Keras would trace it anew.

        Called before each use of the step. A program asks for it by
        `make_train_function(force=True)`, or by `train_function = None`. Without graphs, another
        method in place of `predict_step`, or of one that a step calls, is enough.

        Args:
            step: The name of the step.
        """
        mark = mark_of_function(self._model, step)
        if self._model.run_eagerly:
            predicts = step == "predict_step" and self._model.predict_step
            mark = mark, predicts, self._model.compute_metrics
        if step in self._made and mark != self._marks[step]:
            del self._made[step]
            self._made.pop("metrics", None)
            self._nesting.discard(step)
        self._marks[step] = mark
