"""Executions: k steps in one graph call, and how k is chosen.

Python is entered between executions only. One path serves one step and many, training and
evaluation, streams and single batches; `run_eagerly` takes the same steps without a graph.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import keras
import tensorflow as tf

from kfit.distribute.grappler import adding_in_order
from kfit.distribute.strategy import Strategy
from kfit.exactness.changed_gradients import ChangedGradientsError
from kfit.exactness.gradient_accumulation import GradientAccumulation
from kfit.exactness.replica_context import GradientSums
from kfit.heartbeat import Heartbeat, Phase
from kfit.inputs import BatchLayout, Segment
from kfit.steps.allocator import keep_freed_memory
from kfit.steps.dynamic_shapes import make_step
from kfit.steps.frozen import trains_as_at_first
from kfit.steps.metrics import combine, flat_logs, read_metrics
from kfit.steps.static_shapes import has_static_shapes
from kfit.steps.tracing import Build, GraphsBySize


class ExecutionResult(NamedTuple):
    """What an execution did: the number of steps, and the logs after the last of them."""

    steps: int
    logs: dict[str, Any]


class StepExecutor(Protocol):
    """What takes the steps of a segment, k at a time: `Execution`, or another for workers."""

    def run(self, segment: Segment, steps: int, *, alone: bool = False) -> ExecutionResult:
        """Takes `steps` steps of `segment`, or fewer where its data ends."""

    def make_variables(self, segment: Segment, *, alone: bool = False) -> None:
        """Traces a step without taking it, so that the variables that it makes are there."""

    def settle(self) -> None:
        """Has the model's variables hold all that the replicas have; all tasks call it."""


class Execution:
    """Runs a model's train or test step, k at a time.

    Args:
        model: The model, its variables being placed.
        model_step: `model.train_step` or `model.test_step`.
        strategy: The adapter.
        default_step: Whether `model_step` is Keras' own, so that the metrics are all it returns.
        train: Whether it is the train step.
        heartbeat: What tells the supervisor of this task that a graph is being compiled.
    """

    def __init__(
        self,
        model: keras.Model,
        model_step: Callable[[Any], Any],
        strategy: Strategy,
        *,
        default_step: bool,
        train: bool,
        heartbeat: Heartbeat,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._accumulation = GradientAccumulation(strategy)
        self._gradient_sums = GradientSums()
        self._results: dict[str, str] = {}
        step = make_step(
            model,
            model_step,
            strategy,
            accumulation=self._accumulation,
            gradient_sums=self._gradient_sums,
            results=self._results,
        )
        self._step = trains_as_at_first(model, step) if train else step
        self._default_step = default_step
        self._heartbeat = heartbeat
        self._graphs = GraphsBySize(strategy)
        self._called_graphs: set[tuple[BatchLayout, Build]] = set()
        self._concrete: list[Any] = []
        self._look: Callable[[Any], None] | None = None
        self._last: tuple[Any, Build, Any] | None = None

    def run(self, segment: Segment, steps: int, *, alone: bool = False) -> ExecutionResult:
        """Takes `steps` steps of `segment`, or fewer where its data ends.

        Args:
            segment: Where the batches come from.
            steps: Number of steps, at least 1.
            alone: Whether every execution is of one step, so that its graph needs no loop.
        """
        with self._strategy.scope(), adding_in_order():
            if self._model.run_eagerly:
                return self._run_eagerly(segment, steps)
            if segment.iterator is None:
                return ExecutionResult(1, self._called(self._element, segment, segment.element))
            if self._strategy.static_shapes and not has_static_shapes(segment):
                return self._one_by_one(segment, steps)
            if alone:
                done, logs = self._called(self._next, segment, segment.iterator)
                return ExecutionResult(1 if segment.layout.endless else int(done), logs)
            done, logs = self._called(
                self._many, segment, segment.iterator, tf.constant(steps, tf.int64)
            )
            return ExecutionResult(steps if segment.layout.endless else int(done), logs)

    def make_variables(self, segment: Segment, *, alone: bool = False) -> None:
        """Traces a step without taking it, so that the variables that it makes are there.

        The graph is the one that `segment` will call, wherever it can be known already.

        Args:
            segment: Where the batches come from; none is drawn.
            alone: As for `run`.
        """
        build: Build
        arguments: list[Any]
        with self._strategy.scope():
            if segment.iterator is None:
                build, arguments = self._element, [segment.element]
            elif self._model.run_eagerly or self._strategy.static_shapes:
                build, arguments = self._element, [segment.iterator.element_spec]
            elif alone:
                build, arguments = self._next, [segment.iterator]
            else:
                build, arguments = self._many, [segment.iterator, tf.constant(1, tf.int64)]
            with self._heartbeat.phase(Phase.TRACING):
                self._traced(build, segment, *arguments)

    def look_at_graphs(self, look: Callable[[Any], None]) -> None:
        """Shows the graph of each kind of step before it first runs; those that have been, now.

        Args:
            look: Called with a `tf.Graph`.
        """
        for concrete in self._concrete:
            look(concrete.graph)
        self._look = look

    def settle(self) -> None:
        """Has the optimizer hold what replicas have accumulated, each for itself, so far.

        All tasks call it after the same step, before the model is looked at or saved.
        """
        self._accumulation.settle()

    def _one_by_one(self, segment: Segment, steps: int) -> ExecutionResult:
        """A call a step, whose graph knows the shapes that the stream only tells as it comes."""
        done, logs = 0, {}
        while done < steps and (element := segment.next_element()) is not None:
            logs = self._called(self._element, Segment(segment.layout, 1, element=element), element)
            done += 1
        return ExecutionResult(done, logs)

    def _called(self, build: Build, segment: Segment, *arguments: Any) -> Any:
        """Calls the graph that `build` makes of a layout; it is traced at the first call."""
        if self._last is not None:
            known, built, graph = self._last
            if known() is segment and built == build:
                return graph(*arguments)
        if (segment.layout, build) in self._called_graphs:
            graph = self._graph(build, segment)
            called = graph(*arguments)
        else:
            with self._heartbeat.phase(Phase.TRACING):
                graph, concrete = self._traced(build, segment, *arguments)
                self._concrete.append(concrete)
                if self._look is not None:
                    self._look(concrete.graph)
                called = graph(*arguments)
            self._called_graphs.add((segment.layout, build))
            keep_freed_memory()  # the operations that change it have run by now
        if segment.iterator is not None:
            # All elements of a segment have these shapes, which need not be looked at again.
            graph = graph.get_concrete_function(*arguments)
            self._last = weakref.ref(segment), build, graph
        return called

    def _traced(self, build: Build, segment: Segment, *arguments: Any) -> tuple[Any, Any]:
        """The function of TensorFlow that `build` makes of a layout, and its concrete one."""
        try:
            graph = self._graph(build, segment)
            return graph, graph.get_concrete_function(*arguments)
        except ChangedGradientsError:
            self._gradient_sums.early = True
            self._graphs = GraphsBySize(self._strategy)
            return self._traced(build, segment, *arguments)

    def _graph(self, build: Build, segment: Segment) -> Any:
        return self._graphs.find(segment.layout, build)

    def _element(self, layout: BatchLayout, element: Any) -> dict[str, Any]:
        """One step on an element."""
        outputs = self._step(element, layout)
        return self._logs(self._kept(outputs))

    def _next(self, layout: BatchLayout, iterator: Any) -> tuple[Any, dict[str, Any]]:
        """One step on the next element of a stream, if there is one."""
        if layout.endless:
            return tf.constant(1, tf.int64), self._element(layout, iterator.get_next())
        return self._many(layout, iterator, tf.constant(1, tf.int64))

    def _many(
        self, layout: BatchLayout, iterator: Any, steps: tf.Tensor
    ) -> tuple[Any, dict[str, Any]]:
        """A while loop over the steps; ends with the data when it has an end."""

        def take_step(element: Any) -> Any:
            return self._kept(self._step(element, layout))

        step: Any = take_step
        kept: Any = ()
        if not self._default_step:
            # Traced by itself, so that the specs of its outputs are known before the loop.
            traced = tf.function(take_step, autograph=False)
            spec = traced.get_concrete_function(iterator.element_spec).structured_outputs
            kept = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
            # TensorFlow's collectives between workers work in a loop, not in a function within it.
            step = traced if self._strategy.num_workers == 1 else take_step

        def body_of_endless(done: tf.Tensor, _: Any) -> tuple[Any, Any]:
            return done + 1, step(iterator.get_next())

        def body(done: tf.Tensor, more: tf.Tensor, kept: Any) -> tuple[Any, Any, Any]:
            element = iterator.get_next_as_optional()
            more = element.has_value()

            def take() -> Any:
                return tf.constant(1, tf.int64), step(element.get_value())

            taken, kept = tf.cond(more, take, lambda: (tf.constant(0, tf.int64), kept))
            return done + taken, more, kept

        zero = tf.constant(0, tf.int64)
        if layout.endless:
            done, kept = tf.while_loop(lambda done, _: done < steps, body_of_endless, (zero, kept))
        else:
            done, _, kept = tf.while_loop(
                lambda done, more, _: tf.logical_and(done < steps, more),
                body,
                (zero, tf.constant(True), kept),
            )
        return done, self._logs(kept)

    def _run_eagerly(self, segment: Segment, steps: int) -> ExecutionResult:
        done, kept = 0, None
        elements = [segment.element] if segment.iterator is None else segment.iterator
        for element in elements:
            kept = self._kept(self._step(element, segment.layout))
            done += 1
            if done == steps:
                break
        return ExecutionResult(done, self._logs(kept) if done else {})

    def _kept(self, outputs: Any) -> Any:
        """What of a step's outputs the logs need, one value for all replicas."""
        if self._default_step or not isinstance(outputs, dict):
            return ()
        return {name: self._over_replicas(value) for name, value in flat_logs(outputs).items()}

    def _over_replicas(self, value: Any) -> Any:
        if self._strategy.num_replicas == 1:
            value = self._strategy.local_results(value)[0]
            return tf.convert_to_tensor(value)
        first = self._strategy.local_results(value)[0]
        is_scalar = isinstance(first, tf.Tensor) and first.shape.rank == 0
        if not is_scalar or first.dtype == tf.bool:
            return tf.convert_to_tensor(first)
        # Each replica returned its part of a scalar.
        return self._strategy.reduce("sum", value)

    def _logs(self, kept: Any) -> dict[str, Any]:
        outputs = kept if isinstance(kept, dict) else None
        results = self._results if self._strategy.num_replicas > 1 else {}
        return combine(outputs, read_metrics(self._model, self._strategy), results)


class Pace:
    """How many steps the next execution takes.

    The longest an execution may last is a fraction of a second, so that the progress bar moves and
    a stop is heard; within that as many steps as it takes to make Python's part negligible.

    Args:
        fixed: Steps of every execution, or None to find them while training.
        seconds: How long an execution should last.
    """

    def __init__(self, fixed: int | None, seconds: float) -> None:
        self.fixed = fixed
        self._seconds = seconds
        self._steps = 1
        self._begun = 0.0

    @property
    def steps(self) -> int:
        """Steps of the next execution."""
        return self.fixed or self._steps

    def begin(self) -> None:
        """An execution begins."""
        self._begun = time.perf_counter()

    def end(self, steps: int) -> None:
        """An execution of `steps` steps has ended."""
        seconds = time.perf_counter() - self._begun
        if self.fixed is None and steps:
            wanted = int(steps * self._seconds / max(seconds, 1e-9))
            self._steps = max(1, min(wanted, 8 * self._steps))
