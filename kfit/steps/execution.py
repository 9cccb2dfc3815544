"""Runs k steps in one graph call.

An execution is such a call of k steps. Python code, such as callbacks, runs only between
executions. The same code serves one step or many, training and evaluation, streams of batches and
single batches. With `run_eagerly`, or `tf.config.run_functions_eagerly(True)`, there is no graph.
"""

from __future__ import annotations

import time
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
from kfit.heartbeat.clock import clock_of_thread
from kfit.inputs import BatchLayout, Segment
from kfit.internals.graphs import calls_python
from kfit.internals.models import runs_eagerly
from kfit.internals.runtime import ops_are_deterministic
from kfit.steps.allocator import keep_freed_memory
from kfit.steps.dynamic_shapes import make_step
from kfit.steps.frozen import trains_as_at_first
from kfit.steps.input_times import Measures, after_step, begin, draw, rows_of
from kfit.steps.late_restores import restored_afterwards
from kfit.steps.outputs import Outputs, blank
from kfit.steps.returned import Returned
from kfit.steps.static_shapes import has_static_shapes
from kfit.steps.told_tracing import tracing
from kfit.steps.tracing import Build, GraphsBySize

_END = object()
"""Stands for the batch after the last one."""


class ExecutionResult(NamedTuple):
    """The result of an execution, which is one graph call that runs several steps.

    Attributes:
        steps: The number of steps taken, which may be smaller than asked for if the data has ended.
        logs: The logs after the last step, by name.
        examples: The number of examples of these steps, over all replicas. If each task reads its
            own part of the data, only the examples of this task are counted. None if they were not
            counted.
    """

    steps: int
    logs: dict[str, Any]
    examples: int | None = None


class StepExecutor(Protocol):
    """The interface of an object that runs a model's train or test step, several steps per call.

    `Execution` implements the interface; for parameter servers `ScheduledExecution` does. An
    executor is created at the first `fit` or `evaluate`, and used for later calls as well.

    Attributes:
        calls_python: Whether a graph that was run calls Python code, which may set a flag of the
            model such as `stop_training`.
    """

    calls_python: bool

    def run(self, segment: Segment, steps: int, *, single_step: bool = False) -> ExecutionResult:
        """Runs the model's step on the next `steps` batches, or fewer if the data ends.

        Args:
            segment: The steps that can be taken next, with the iterator of their batches.
            steps: The number of steps, at least 1.
            single_step: Whether `steps` is 1 in all calls for this segment. A graph without a loop
                is then enough.

        Returns:
            The number of steps taken, and the logs after the last step.
        """

    def make_variables(self, segment: Segment, *, single_step: bool = False) -> None:
        """Traces the graph of a step without running it, so that all the step's variables exist.

        Some variables are created only when a step is traced. When training resumes, these
        variables must exist before their saved values are restored. No batch is drawn.

        Args:
            segment: The steps for which the graph is traced.
            single_step: As for `run`.
        """

    def settle(self) -> None:
        """Adds gradients that replicas have accumulated separately to the optimizer's own sums.

        With `gradient_accumulation_steps`, Keras' optimizer adds up gradients in variables of its
        own. kfit lets each replica add up its gradients separately, and sums them over the replicas
        only when the optimizer updates the model. Until then they are missing in the optimizer's
        variables. So this method must be called before a callback reads or saves the model. It is a
        collective: all tasks must call it after the same step.
        """


class Execution:
    """The object that runs all executions of a model's train or test step.

    An execution is one graph call of k steps. Usually each call of `run` makes one execution.

    Args:
        model: The model; its variables must be on the strategy's devices already.
        model_step: `model.train_step` or `model.test_step`.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the steps run.
        default_step: Whether `model_step` is Keras' own, which returns only metrics.
        train: Whether `model_step` is the train step.
        heartbeat: Reports to this task's supervisor that a graph is being traced, so that the
            tracing is not taken for a hang.

    Attributes:
        times_input: Whether the graphs measure how long steps wait for their data, and count the
            examples. The time is counted as `Phase.INPUT` (see `kfit/heartbeat/clock.py`).
        calls_python: As for `StepExecutor`.
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
        returned = Returned()
        self._outputs = Outputs(model, strategy, returned, default_step=default_step)
        step = make_step(
            model,
            model_step,
            strategy,
            accumulation=self._accumulation,
            gradient_sums=self._gradient_sums,
            returned=returned,
        )
        self._step = trains_as_at_first(model, step) if train else step
        self._default_step = default_step
        self._heartbeat = heartbeat
        self._graphs = GraphsBySize(strategy)
        self._called_graphs: set[tuple[BatchLayout, Build]] = set()
        self._concrete: list[Any] = []
        self._look: Callable[[Any], None] | None = None
        self.times_input = False
        self.calls_python = False

    def run(self, segment: Segment, steps: int, *, single_step: bool = False) -> ExecutionResult:
        """Runs the model's step on the next `steps` batches, or fewer if the data ends.

        Args:
            segment: The steps that can be taken next, with the iterator of their batches.
            steps: The number of steps, at least 1.
            single_step: Whether `steps` is 1 in all calls for this segment. A graph without a loop
                is then used.

        Returns:
            The number of steps taken, and the logs after the last step.
        """
        with self._strategy.scope(), adding_in_order():
            if runs_eagerly(self._model):
                return self._run_eagerly(segment, steps)
            if segment.iterator is None:
                logs = self._called(self._element, segment, segment.element)
                return ExecutionResult(1, logs, self._examples_of(segment, 1))
            if self._strategy.static_shapes and not has_static_shapes(segment):
                return self._one_by_one(segment, steps)
            build, *count = self._build_of(single_step, steps)
            is_new = (segment.layout, build) not in self._called_graphs
            done, logs, *measures = self._called(build, segment, segment.iterator, *count)
            examples = None
            if measures:
                source = Phase.TRACING if is_new else None
                clock_of_thread().move(float(measures[0].waited), Phase.INPUT, source)
                examples = int(measures[0].rows)
            taken = (1 if single_step else steps) if segment.layout.endless else int(done)
            return ExecutionResult(taken, logs, self._examples_of(segment, taken, examples))

    def _build_of(self, single_step: bool, steps: int) -> tuple[Any, ...]:
        """Returns the method that the graph of an execution is traced from, and its last arguments.

        Args:
            single_step: As for `run`.
            steps: As for `run`.
        """
        # The clock that a graph reads is no deterministic operation.
        is_timed = self.times_input and not ops_are_deterministic()
        if single_step:
            return (self._timed_next if is_timed else self._next,)
        count = tf.constant(steps, tf.int64)
        return self._timed_many if is_timed else self._many, count

    def _examples_of(self, segment: Segment, steps: int, counted: int | None = None) -> int | None:
        """Returns the number of examples of the steps that were taken; None if it is not known."""
        known = segment.layout.examples
        return steps * known if isinstance(known, int) else counted

    def make_variables(self, segment: Segment, *, single_step: bool = False) -> None:
        """Traces the graph of a step without running it, so that all the step's variables exist.

        Usually this is the graph that `run` will call for `segment`. With `run_eagerly` or static
        shapes it is the graph of a single step instead. No batch is drawn.

        Args:
            segment: The steps for which the graph is traced.
            single_step: As for `run`.
        """
        build: Build
        arguments: list[Any]
        with self._strategy.scope():
            if segment.iterator is None:
                build, arguments = self._element, [segment.element]
            elif runs_eagerly(self._model) or self._strategy.static_shapes:
                build, arguments = self._element, [segment.iterator.element_spec]
            else:
                build, *count = self._build_of(single_step, 1)
                arguments = [segment.iterator, *count]
            with tracing(self._heartbeat):
                self._traced(build, segment, *arguments)

    def look_at_graphs(self, look: Callable[[Any], None]) -> None:
        """Calls `look` with each graph in which steps are run, now and when a graph is added.

        Graphs that were called before are passed at once. A graph that is added later is passed
        when it has been traced, before its first call. A `fit` that saves snapshots uses this
        method to warn of random operations whose state cannot be saved.

        Args:
            look: A function whose argument is a `tf.Graph`.
        """
        for concrete in self._concrete:
            look(concrete.graph)
        self._look = look

    def settle(self) -> None:
        """Adds gradients that replicas have accumulated separately to the optimizer's own sums.

        Called before a callback reads or saves the model. It is a collective: all tasks must call
        it after the same step. See `StepExecutor.settle`.
        """
        self._accumulation.settle()

    def _one_by_one(self, segment: Segment, steps: int) -> ExecutionResult:
        """Runs the next `steps` steps, or fewer if the data ends, with a graph call for each step.

        Used if the strategy needs static shapes, but the shapes of a batch are known only when the
        batch is drawn.

        Args:
            segment: The group of steps that can be taken next, with the iterator of their batches.
            steps: The number of steps, at least 1.

        Returns:
            The number of steps taken, and the logs after the last step. The logs are empty if the
            data had ended already.
        """
        done, logs, examples = 0, {}, 0
        while done < steps and (element := self._drawn(segment.next_element)) is not None:
            logs = self._called(self._element, Segment(segment.layout, 1, element=element), element)
            done += 1
            examples += int(rows_of(element, self._strategy)) if self.times_input else 0
        counted = examples if self.times_input else None
        return ExecutionResult(done, logs, self._examples_of(segment, done, counted))

    def _drawn(self, next_element: Callable[[], Any]) -> Any:
        """Draws an element outside of a graph; the time counts as `Phase.INPUT`."""
        began = time.perf_counter()
        element = next_element()
        if self.times_input:
            clock_of_thread().move(time.perf_counter() - began, Phase.INPUT)
        return element

    def _called(self, build: Build, segment: Segment, *arguments: Any) -> Any:
        """Calls the graph of the method `build`, after tracing this graph if necessary.

        Args:
            build: The method that the graph is traced from: `_element`, `_next` or `_many`.
            segment: The steps to run. Batches of another layout, such as of another size, may need
                another graph of the same method.
            *arguments: The arguments of `build` after `layout`.

        Returns:
            What the graph returns: the result of `build`.
        """
        if (graph := self._graphs.latest(build, segment)) is not None:
            return graph(*arguments)
        if (segment.layout, build) in self._called_graphs:
            graph = self._graph(build, segment).get_concrete_function(*arguments)
            called = graph(*arguments)
        else:
            with tracing(self._heartbeat):
                with restored_afterwards():  # the step may build the model
                    graph = self._traced(build, segment, *arguments)
                self._concrete.append(graph)
                self.calls_python = self.calls_python or calls_python(graph.graph)
                if self._look is not None:
                    self._look(graph.graph)
                called = graph(*arguments)
            self._called_graphs.add((segment.layout, build))
            keep_freed_memory()  # TensorFlow has set glibc's thresholds by now
        self._graphs.remember(build, segment, graph)
        return called

    def _traced(self, build: Build, segment: Segment, *arguments: Any) -> Any:
        """Traces the graph of the method `build`, without running it.

        Some steps change gradients before they pass them to the optimizer. For such a step, the
        gradients must be summed over the replicas before the change (`GradientSums.early`). If
        tracing shows that the step is of this kind, all earlier graphs are dropped, and the step is
        traced again with early sums.

        Args:
            build: As for `_called`.
            segment: As for `_called`.
            *arguments: As for `_called`.

        Returns:
            The graph, as a concrete function.
        """
        try:
            return self._graph(build, segment).get_concrete_function(*arguments)
        except ChangedGradientsError:
            # The earlier graphs sum late, too. They are traced again when they are called.
            self._gradient_sums.early = True
            self._graphs = GraphsBySize(self._strategy)
            self._called_graphs.clear()
            self._concrete.clear()
            return self._traced(build, segment, *arguments)

    def _graph(self, build: Build, segment: Segment) -> Any:
        return self._graphs.find(segment.layout, build)

    def _element(self, layout: BatchLayout, element: Any) -> dict[str, Any]:
        """Runs one step on a batch that the caller has already drawn, and returns the logs.

        It is traced to a graph, for segments without an iterator and for batches that a loop in
        Python draws.

        Args:
            layout: A description of the batch.
            element: The batch, or the part of it that this task needs.
        """
        outputs = self._step(element, layout)
        return self._outputs.logs(self._outputs.kept(outputs))

    def _next(self, layout: BatchLayout, iterator: Any) -> tuple[Any, dict[str, Any]]:
        """Runs one step on the next batch of an iterator.

        It is traced to a graph, which is called if every execution has exactly one step. If the
        data cannot end, the graph has no loop; otherwise it has the loop of `_many`.

        Args:
            layout: A description of the batches.
            iterator: The iterator of the batches.

        Returns:
            The number of steps taken (0 if the iterator has ended, otherwise 1), and the logs.
        """
        if layout.endless:
            return tf.constant(1, tf.int64), self._element(layout, iterator.get_next())
        return self._many(layout, iterator, tf.constant(1, tf.int64))

    def _many(
        self, layout: BatchLayout, iterator: Any, steps: tf.Tensor
    ) -> tuple[Any, dict[str, Any]]:
        """Runs up to `steps` steps in a `tf.while_loop`, within a graph.

        The loop also ends when the data ends.

        Returns:
            The number of steps taken, and the logs after the last step.
        """
        step, kept = self._step_in_loop(layout, iterator)

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
        return done, self._outputs.logs(kept)

    def _timed_next(self, layout: BatchLayout, iterator: Any) -> tuple[Any, ...]:
        """Runs one step on the next batch of an iterator, as `_next`, and measures the input."""
        one = tf.constant(1, tf.int64)
        if not layout.endless:
            return self._timed_many(layout, iterator, one)
        drawn = draw(iterator.get_next, lambda element: element)
        rows = 0 if layout.examples is not None else rows_of(drawn.element, self._strategy)
        logs, measures = after_step(
            begin(), drawn, rows, lambda: self._element(layout, drawn.element)
        )
        return one, logs, measures

    def _timed_many(self, layout: BatchLayout, iterator: Any, steps: tf.Tensor) -> tuple[Any, ...]:
        """Runs up to `steps` steps, as `_many`, and measures how long they wait for their data.

        Returns:
            The number of steps taken, the logs after the last step, and the `Measures`.
        """
        step, kept = self._step_in_loop(layout, iterator)
        none = tf.constant(0, tf.int64)

        def rows(element: Any) -> tf.Tensor:
            return none if layout.examples is not None else rows_of(element, self._strategy)

        def body_of_endless(done: tf.Tensor, _: Any, measures: Measures) -> tuple[Any, ...]:
            drawn = draw(iterator.get_next, lambda element: element)
            taken = rows(drawn.element)
            kept, measures = after_step(measures, drawn, taken, lambda: step(drawn.element))
            return done + 1, kept, measures

        def body(done: tf.Tensor, more: tf.Tensor, kept: Any, measures: Measures) -> Any:
            drawn = draw(iterator.get_next_as_optional, lambda element: element.has_value())
            more = drawn.element.has_value()

            def take() -> Any:
                element = drawn.element.get_value()
                return tf.constant(1, tf.int64), rows(element), step(element)

            def in_turn() -> Any:
                return tf.cond(more, take, lambda: (none, none, kept))

            def counted(taken: Any) -> tf.Tensor:
                return taken[1]

            (taken, _, kept), measures = after_step(measures, drawn, counted, in_turn)
            return done + taken, more, kept, measures

        if layout.endless:
            done, kept, measures = tf.while_loop(
                lambda done, *_: done < steps, body_of_endless, (none, kept, begin())
            )
        else:
            done, _, kept, measures = tf.while_loop(
                lambda done, more, *_: tf.logical_and(done < steps, more),
                body,
                (none, tf.constant(True), kept, begin()),
            )
        return done, self._outputs.logs(kept), measures

    def _step_in_loop(self, layout: BatchLayout, iterator: Any) -> tuple[Callable[..., Any], Any]:
        """Returns the step for a loop in a graph, and what it keeps before the first step.

        Args:
            layout: A description of the batches.
            iterator: The iterator of the batches.

        Returns:
            A function that takes a step on an element and returns what the logs need of its
            outputs; and blank tensors in the structure of these outputs.
        """

        def take_step(element: Any) -> Any:
            return self._outputs.kept(self._step(element, layout))

        step: Any = take_step
        kept: Any = ()
        if not self._default_step:
            # The step is traced separately, because the loop needs the specs of its outputs
            # beforehand.
            traced = tf.function(take_step, autograph=False)
            spec = traced.get_concrete_function(iterator.element_spec).structured_outputs
            kept = tf.nest.map_structure(blank, spec)
            # TensorFlow's collectives work in a loop, but not in a function that the loop calls.
            works = self._strategy.num_workers == 1 and not self._strategy.sums_by_collectives
            step = traced if works else take_step
        return step, kept

    def _run_eagerly(self, segment: Segment, steps: int) -> ExecutionResult:
        done, kept, examples = 0, None, 0
        single = segment.element
        elements = iter([single] if segment.iterator is None else segment.iterator)
        while done < steps and (drawn := self._drawn(lambda: next(elements, _END))) is not _END:
            kept = self._outputs.kept(self._step(drawn, segment.layout))
            done += 1
            examples += int(rows_of(drawn, self._strategy)) if self.times_input else 0
        counted = self._examples_of(segment, done, examples if self.times_input else None)
        return ExecutionResult(done, self._outputs.logs(kept) if done else {}, counted)
