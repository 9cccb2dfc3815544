"""Runs steps with the strategy `ParameterServer`: the coordinator sends each step to a free worker.

Each call sends k steps to the workers, and waits until all k steps have finished. So no worker is
in the middle of a step between two calls; callbacks, metrics and saved states then see one
consistent state, as with any other strategy. The coordinator (the task that runs the user's
program) draws the batches, and sends a batch with each step. So each batch is used once.

When a worker dies, TensorFlow repeats the worker's step on another worker. The workers count the
steps that they begin, so the coordinator notices such a repetition. In an evaluation, all k steps
are then repeated from the metrics' earlier values, so that each example counts once. In training,
`optimizer.iterations` is corrected: it is set to its value before the k steps plus the number of
steps taken, since the dead worker may or may not have increased it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.parameter_server import ParameterServer
from kfit.exactness.async_patches import keras_for_workers
from kfit.heartbeat import Heartbeat, Phase
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import BatchLayout, Segment
from kfit.internals.optimizers import step_count
from kfit.steps.dynamic_shapes import make_step
from kfit.steps.execution import ExecutionResult
from kfit.steps.metrics import combine, flat_logs
from kfit.steps.replica_parts import as_tensors
from kfit.steps.told_tracing import tracing

_RECOVERY = 120.0
"""Seconds that k steps may last without being taken for a hang: a worker may be restarting."""

Kept = Callable[[Any, list[tf.Tensor]], Any]
"""A function `kept(outputs, finite)` that selects what a worker's step returns to the coordinator.

`outputs` is what the model's step returned. `finite` is a list, which is empty without loss
scaling. With loss scaling, the list has a boolean tensor for each update of the optimizer, which is
True if the gradients are finite.
"""


class Workers:
    """The sender of a model's steps to the workers of a parameter server strategy.

    The coordinator (the task that runs the user's program) has one such object for each kind of
    step. The object has the graphs of the step, and the variable in which workers count the steps
    that they begin.

    Args:
        model: The model; its variables must be on the ps tasks already.
        model_step: The model's `train_step`, `test_step` or `predict_step`.
        strategy: kfit's wrapper of the `tf.distribute` parameter server strategy.
        heartbeat: Reports to the supervisor of this task that the task waits for workers, so that
            the wait is not taken for a hang.

    Raises:
        ValueError: If the model was compiled with `run_eagerly` or `jit_compile`.
    """

    def __init__(
        self,
        model: keras.Model,
        model_step: Callable[[Any], Any],
        strategy: ParameterServer,
        heartbeat: Heartbeat,
    ) -> None:
        for option in ("run_eagerly", "jit_compile"):
            if getattr(model, option):
                raise ValueError(
                    f"`{option}=True` does not go with the strategy 'parameter_server': steps are "
                    "graphs that workers run on variables of the ps tasks. Compile the model "
                    f"with `{option}=False`."
                )
        self._model = model
        self._strategy = strategy
        self._step = make_step(model, model_step, strategy)
        self._heartbeat = heartbeat
        self._graphs: dict[BatchLayout, Any] = {}
        self._has_failed = False
        with strategy.scope():
            self._begun = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._scheduled = 0

    def schedule(self, segment: Segment, elements: list[Any], kept: Kept) -> list[Any]:
        """Runs one step for each element on the workers, and waits until all steps have finished.

        Args:
            segment: The steps (of one epoch, with batches of one size) to which the elements
                belong.
            elements: The input of each step, as `elements_of` returns them.
            kept: A function that selects what each step returns to the coordinator (`Kept`).

        Returns:
            A remote value for each element. The `fetch()` of a remote value returns what `kept`
            returned in the step.

        Raises:
            ValueError: If each worker reads a data set of its own, and the data set of a worker has
                ended.
        """
        if self._has_failed:
            # Some steps of the failed execution were begun, and the workers counted them.
            self._scheduled, self._has_failed = int(self._begun.numpy()), False
        # A worker that restarts needs time, and it may be the only worker.
        waits = (
            self._heartbeat.phase(Phase.WORKERS, _RECOVERY)
            if segment.layout in self._graphs
            else tracing(self._heartbeat)
        )
        graph = self._graph(segment.layout, kept)
        try:
            with waits:
                values = [self._strategy.schedule(graph, (element,)) for element in elements]
                self._strategy.join()
        except BaseException as error:
            self._has_failed = True
            if isinstance(error, tf.errors.OutOfRangeError):
                raise ValueError(
                    "`x` is a function whose data set has ended on a worker. Workers go through "
                    "their data at their own pace: let it repeat (`dataset.repeat()`)."
                ) from error
            raise
        self._scheduled += len(elements)
        return values

    def trace(self, segment: Segment, kept: Kept) -> None:
        """Traces the graph of a step without running it, so that all the step's variables exist.

        Some variables are created only when a step is traced, such as those of an optimizer that is
        built in a step. When training resumes, these variables must exist before their saved values
        are restored. No batch is drawn.

        Args:
            segment: The steps for which the graph is traced.
            kept: A function that selects what the step returns to the coordinator (`Kept`).
        """
        element = segment.iterator if segment.layout.per_replica else segment.element
        if element is None:
            element = segment.iterator.element_spec
        with tracing(self._heartbeat):
            self._graph(segment.layout, kept).get_concrete_function(element)

    def taken_again(self) -> int:
        """Returns how many steps were repeated since the last call of this method.

        TensorFlow repeats a step on another worker if a worker dies in the middle of the step.
        """
        begun = int(self._begun.numpy())
        again, self._scheduled = begun - self._scheduled, begun
        return again

    def _graph(self, layout: BatchLayout, kept: Kept) -> Any:
        if layout not in self._graphs:
            self._graphs[layout] = tf.function(
                partial(self._on_worker, layout, kept), autograph=False, reduce_retracing=True
            )
        return self._graphs[layout]

    def _on_worker(self, layout: BatchLayout, kept: Kept, element: Any) -> Any:
        # The step is counted before it can write any other variable.
        with tf.control_dependencies([self._begun.assign_add(1, read_value=False)]):
            if layout.per_replica:
                element = next(element)
            with keras_for_workers(self._model, self._strategy) as finite:
                outputs = self._step(element, layout)
                return kept(outputs, finite)


def elements_of(segment: Segment, steps: int) -> list[Any]:
    """Draws the inputs of the next `steps` steps, to be sent to the parameter server workers.

    If each worker reads a data set of its own, nothing is drawn: every input is then the iterator,
    from which the worker draws the batch itself.

    Args:
        segment: The steps that can be taken next, with the iterator of their batches.
        steps: The number of steps.

    Returns:
        The list of inputs. The list is shorter than `steps` if the data ends before.
    """
    if segment.layout.per_replica:
        return [segment.iterator] * steps
    elements: list[Any] = []
    while len(elements) < steps and (element := segment.next_element()) is not None:
        elements.append(element)
    return elements


class ScheduledExecution:
    """An executor that runs a model's train or test step on workers with parameter servers.

    Each call takes k steps.

    Args:
        model: The model; its variables must be on the ps tasks already.
        model_step: `model.train_step` or `model.test_step`.
        strategy: kfit's wrapper of the `tf.distribute` parameter server strategy.
        heartbeat: Reports to the supervisor of this task that the task waits for workers, so that
            the wait is not taken for a hang.
        read_metrics: A function that returns the current results of the model's metrics.
        default_step: Whether `model_step` is Keras' own, which returns only metrics.
        train: Whether `model_step` is the train step.

    Attributes:
        calls_python: False: workers run the steps in other processes.
    """

    calls_python = False

    def __init__(
        self,
        model: keras.Model,
        model_step: Callable[[Any], Any],
        strategy: ParameterServer,
        heartbeat: Heartbeat,
        *,
        read_metrics: Callable[[], dict[str, Any]],
        default_step: bool,
        train: bool,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._workers = Workers(model, model_step, strategy, heartbeat)
        self._default_step = default_step
        self._train = train
        self._read_metrics = read_metrics
        self._has_warned = strategy.num_servers("worker") == 1

    def run(self, segment: Segment, steps: int, *, single_step: bool = False) -> ExecutionResult:
        """Runs the model's step on the next `steps` batches, or fewer if the data ends before.

        Args:
            segment: The steps that can be taken next, with the iterator of their batches.
            steps: The number of steps, at least 1.
            single_step: Whether every call takes exactly one step. If so, the first call warns that
                workers take turns instead of working side by side.

        Returns:
            The number of steps taken, and the logs after the last step.
        """
        if single_step and not self._has_warned:
            self._has_warned = True
            warn_user(
                "Executions are of one step, so workers take turns: a callback watches every "
                "batch, or `steps_per_execution` is 1. With `compile(steps_per_execution=k)` batch "
                "hooks are called every k steps, which workers take side by side."
            )
        with self._strategy.scope():
            elements = elements_of(segment, steps)
            if not elements:
                return ExecutionResult(0, {})
            take = self._trained if self._train else self._evaluated
            values = take(segment, elements)
            outputs = None if self._default_step else values[-1].fetch()
            return ExecutionResult(len(elements), combine(outputs, self._read_metrics(), {}))

    def make_variables(self, segment: Segment, *, single_step: bool = False) -> None:
        """Traces the graph of a step without running it, so that all the step's variables exist.

        Some variables are created only when a step is traced. When training resumes, these
        variables must exist before their saved values are restored. No batch is drawn.

        Args:
            segment: The steps for which the graph is traced.
            single_step: Ignored here, since workers always run the graph of a single step.
        """
        with self._strategy.scope():
            self._workers.trace(segment, self._kept)

    def settle(self) -> None:
        """Does nothing, since with parameter servers no replica accumulates gradients by itself.

        With other strategies, `StepExecutor.settle` adds such gradients to the optimizer's own sums
        before a callback reads or saves the model.
        """

    def _trained(self, segment: Segment, elements: list[Any]) -> list[Any]:
        iterations = self._iterations()
        before = None if iterations is None else int(np.array(iterations))
        values = self._workers.schedule(segment, elements, self._kept)
        again = self._workers.taken_again()
        if again:
            if iterations is not None and before is not None:
                # Without loss scaling, `fetch()` returns (), and every step counts. With it, the
                # result is whether the gradients were finite, and a step counts only if they were.
                iterations.assign(before + sum(all(value.fetch()) for value in values))
            warn_user(
                f"{again} of {len(elements)} steps were begun again by another worker, because the "
                "first one died in the middle; what it had written to the variables stays."
            )
        return values

    def _evaluated(self, segment: Segment, elements: list[Any]) -> list[Any]:
        variables = [v for metric in self._model.metrics for v in metric.variables]
        before = [np.array(variable) for variable in variables]
        while True:
            values = self._workers.schedule(segment, elements, self._kept)
            if not self._workers.taken_again():
                return values
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

    def _iterations(self) -> Any:
        """Returns the optimizer's step counter, or None if kfit must not correct the counter.

        If a worker dies, the counter is set to its earlier value plus the number of steps taken.
        That is right only if every step is sure to update the model. So the result is None if there
        is no optimizer, if the train step is not Keras' own, or if the model has no trainable
        variables.
        """
        optimizer = getattr(self._model, "optimizer", None)
        if not self._default_step or optimizer is None or not self._model.trainable_variables:
            return None
        while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
            optimizer = inner
        return step_count(optimizer)

    def _kept(self, outputs: Any, finite: list[tf.Tensor]) -> Any:
        if self._default_step:
            return tuple(finite)
        return {name: as_tensors(value) for name, value in flat_logs(outputs).items()}


class ScheduledPrediction:
    """An executor that runs a model's predict step on parameter server workers, k batches per call.

    Args:
        model: The model; its variables must be on the ps tasks already.
        strategy: kfit's wrapper of the `tf.distribute` parameter server strategy.
        heartbeat: Reports to the supervisor of this task that the task waits for workers, so that
            the wait is not taken for a hang.
    """

    def __init__(self, model: keras.Model, strategy: ParameterServer, heartbeat: Heartbeat) -> None:
        self._strategy = strategy
        self._workers = Workers(model, model.predict_step, strategy, heartbeat)

    def run(self, segment: Segment, steps: int) -> tuple[int, list[Any]]:
        """Predicts the next `steps` batches of `segment`, or fewer if the data ends.

        Args:
            segment: The batches that can be predicted next, with their iterator.
            steps: The number of batches.

        Returns:
            The number of batches predicted, and a list with the outputs of each batch, in the order
            of the batches.
        """
        with self._strategy.scope():
            elements = elements_of(segment, steps)
            values = self._workers.schedule(segment, elements, lambda outputs, _: outputs)
            return len(elements), [value.fetch() for value in values]
