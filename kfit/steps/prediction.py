"""Runs a model's predict step, and returns outputs in the order of examples, without padding."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.heartbeat import Heartbeat
from kfit.inputs import BatchLayout, Segment
from kfit.inputs.order import rows_of_replica
from kfit.internals.models import runs_eagerly
from kfit.steps.dynamic_shapes import make_step
from kfit.steps.predicted import as_they_are, named_predictions
from kfit.steps.replica_parts import of_one_shape
from kfit.steps.returned import Returned
from kfit.steps.static_shapes import has_static_shapes, static_size
from kfit.steps.told_tracing import tracing
from kfit.steps.tracing import GraphsBySize, of_any_size, opened


class Predictor(Protocol):
    """The interface of an object that runs a model's `predict_step`, several batches per call.

    `Prediction` implements the interface; for parameter servers `ScheduledPrediction` does.
    """

    def run(self, segment: Segment, steps: int) -> tuple[int, list[Any]]:
        """Predicts the next `steps` batches of `segment`, or fewer if the data ends.

        Args:
            segment: The batches that can be predicted next, with their iterator.
            steps: The number of batches.

        Returns:
            The number of batches predicted, and a list with their outputs, in the order of the
            batches. An item of the list has the outputs of one batch, or of several batches joined.
        """


class Prediction:
    """An executor that runs a model's predict step, k batches per call.

    If all outputs are dense tensors of known inner shape, one graph call predicts k batches.
    Otherwise (sparse or ragged outputs, or inner shapes that vary) there is one graph call for each
    batch. Several workers gather the outputs by collectives, once per graph call, so that each task
    has all outputs.

    Args:
        model: The model; its variables must be on the strategy's devices already.
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the steps run.
    """

    def __init__(self, model: keras.Model, strategy: Strategy) -> None:
        self._model = model
        self._strategy = strategy
        self._returned = Returned()
        self._step = make_step(
            model, model.predict_step, strategy, predicts=True, returned=self._returned
        )
        self._heartbeat = Heartbeat.of_environment()
        self._graphs = GraphsBySize(strategy)
        self._called: set[tuple[BatchLayout, bool]] = set()
        self._streams: dict[tuple[BatchLayout, str], Any] = {}
        self._changes_rows = False  # whether a prediction is more than the rows of all replicas

    def run(self, segment: Segment, steps: int) -> tuple[int, list[Any]]:
        """Predicts the next `steps` batches of `segment`, or fewer if the data ends.

        On several workers this is a collective: all tasks must call it.

        Args:
            segment: The batches that can be predicted next, with their iterator.
            steps: The number of batches.

        Returns:
            The number of batches predicted, and a list of outputs, which is the same on every task.
            Each item is a structure of tensors with a row for each example of one or more global
            batches, in the order of the batches. A prediction without such rows is the value that
            one device has of each batch; those of several batches are joined along the first axis.
        """
        call = segment.layout, steps > 1 and segment.iterator is not None
        traces = nullcontext() if call in self._called else tracing(self._heartbeat)
        self._called.add(call)
        with self._strategy.scope(), traces:
            if segment.iterator is None:
                return 1, [self._outputs(segment)]
            stream = self._stream(segment) if steps > 1 else None
            if stream is None:
                return self._one_by_one(segment, steps)
            done, outputs = stream(segment.iterator, tf.constant(steps))
            return int(done), [outputs] if int(done) else []

    def _one_by_one(self, segment: Segment, steps: int) -> tuple[int, list[Any]]:
        batches: list[Any] = []
        while len(batches) < steps and (element := segment.next_element()) is not None:
            batches.append(self._outputs(Segment(segment.layout, 1, element=element)))
        return len(batches), batches

    def _outputs(self, segment: Segment) -> Any:
        """Returns the outputs of the only batch of a segment."""
        if runs_eagerly(self._model):
            outputs = self._batch(segment.layout, segment.element)
        else:
            outputs = self._graph(segment)(segment.element)
        if self._strategy.num_workers == 1:
            return outputs
        # Done eagerly, because in a graph TensorFlow's collectives need the same shape in all
        # steps.
        return keras.tree.map_structure(self._with_rows_of_other_workers, outputs)

    def _graph(self, segment: Segment) -> Any:
        """Returns the graph for the only batch of a segment."""
        graph = self._graphs.latest(self._batch, segment)
        if graph is None:
            found = self._graphs.find(segment.layout, self._batch)
            graph = found.get_concrete_function(segment.element)
            self._graphs.remember(self._batch, segment, graph)
        return graph

    def _stream(self, segment: Segment) -> Any:
        """Returns a graph that predicts many batches in one call, or None if that is not possible.

        The graph must join the outputs of the batches. That is not possible if outputs are sparse
        or ragged, or if their inner shapes vary; nor if several workers would have to change the
        rows of each batch, such as to take a slice of them. The result is also None if the model
        runs eagerly, if the strategy needs static shapes and the batches have none, or if the rank
        of the batches is known only when they are drawn: as in Keras, each is predicted by itself
        then.

        Args:
            segment: The batches that can be predicted next, with their iterator.
        """
        if runs_eagerly(self._model):
            return None
        if self._strategy.static_shapes and not has_static_shapes(segment):
            return None
        if not _has_ranks(segment.iterator.element_spec):
            return None
        # Whether outputs can be stacked depends on everything in the layout but the number of rows.
        like = of_any_size(segment.layout), repr(opened(segment.iterator.element_spec))
        if like not in self._streams:
            step = self._graphs.find(segment.layout, self._batch)
            outputs = step.get_concrete_function(segment.iterator.element_spec).structured_outputs
            stacks = all(_is_stackable(spec) for spec in tf.nest.flatten(outputs))
            stacks = stacks and not (self._changes_rows and self._strategy.num_workers > 1)
            self._streams[like] = partial(self._many, outputs) if stacks else None
        many = self._streams[like]
        return None if many is None else self._graphs.find(segment.layout, many)

    def _many(self, outputs: Any, layout: BatchLayout, iterator: Any, steps: tf.Tensor) -> Any:
        """Predicts up to `steps` batches in a `tf.while_loop`, which also ends when the data ends.

        Args:
            outputs: The specs of the outputs of one batch, in the structure of the outputs.
            layout: A description of the batches.
            iterator: The iterator of the batches.
            steps: The largest number of batches, an int32 scalar.

        Returns:
            The number of batches predicted, and the outputs of all these batches.
        """
        specs = tf.nest.flatten(outputs)
        keepers = 1 if self._strategy.num_workers == 1 else self._strategy.num_local_replicas
        kept = [[_Rows.none(spec) for spec in specs] for _ in range(keepers)]

        def write(element: Any, done: tf.Tensor, kept: Any) -> Any:
            parts = self._parts(layout, element)
            return [
                [rows.write(done, value) for rows, value in zip(*pair, strict=True)]
                for pair in zip(kept, parts, strict=True)
            ]

        def body(done: tf.Tensor, more: tf.Tensor, kept: Any) -> Any:
            if layout.endless:
                return done + 1, more, write(iterator.get_next(), done, kept)
            element = iterator.get_next_as_optional()
            more = element.has_value()
            kept = tf.cond(more, lambda: write(element.get_value(), done, kept), lambda: kept)
            return done + tf.cast(more, tf.int32), more, kept

        done, _, kept = tf.while_loop(
            lambda done, more, _: tf.logical_and(done < steps, more),
            body,
            (tf.constant(0), tf.constant(True), kept),
        )
        if self._strategy.num_workers == 1:
            rows = [each.all(done, spec) for each, spec in zip(kept[0], specs, strict=True)]
        else:
            rows = [
                self._of_all_workers(name, [part[i] for part in kept], done, spec)
                for i, (name, spec) in enumerate(named_predictions(outputs))
            ]
        return done, tf.nest.pack_sequence_as(outputs, rows)

    def _parts(self, layout: BatchLayout, element: Any) -> list[list[Any]]:
        """Runs the predict step on a batch, and returns those outputs that this task has.

        If there is only one worker, this task has the outputs of the whole batch. Otherwise each
        replica of this task has the outputs of its own rows.

        Args:
            layout: A description of the batch.
            element: The batch, or the part of it that this task needs.

        Returns:
            A list with one item for the whole batch, or one item for each replica of this task.
            Each item is a list of the model's outputs, in the order of `tf.nest.flatten`.
        """
        if self._strategy.num_workers == 1:
            return [tf.nest.flatten(self._batch(layout, element))]
        outputs = tf.nest.flatten(self._step(element, layout))
        return [
            list(part) for part in zip(*map(self._strategy.local_results, outputs), strict=True)
        ]

    def _of_all_workers(
        self, name: str, kept: list[_Rows], done: tf.Tensor, spec: Any
    ) -> tf.Tensor:
        """Gathers one output of the model from all workers, with rows in the order of the batches.

        It is a collective: all tasks must call it.

        Args:
            name: The name of the output in the record of what the step returns.
            kept: For each replica of this task, its rows of the output for several batches.
            done: The number of batches.
            spec: The spec of the output of one batch.
        """
        if name in self._returned.sums:
            addends = [each.all(done, spec)[None] for each in kept]
            return tf.reduce_sum(self._strategy.gather_parts(addends), 0)
        if name not in self._returned.rows:
            return kept[0].all(done, spec)
        rows = self._strategy.gather_parts([each.all(done, spec) for each in kept])
        sizes = self._strategy.gather_parts([each.sizes.stack()[None] for each in kept])
        # Each replica's rows are in the order of the batches, so a stable sort by batch merges
        # them.
        batches = tf.tile(tf.range(done)[None], [tf.shape(sizes)[0], 1])
        batch_of_row = tf.repeat(tf.reshape(batches, [-1]), tf.reshape(sizes, [-1]))
        return tf.gather(rows, tf.argsort(batch_of_row, stable=True))

    def _batch(self, layout: BatchLayout, element: Any) -> Any:
        outputs = self._step(element, layout)
        if self._strategy.num_replicas == 1:
            return outputs
        examples = None
        if self._strategy.static_shapes and not layout.per_replica:
            examples = static_size(element)
        gathered = [
            self._gathered(name, value, examples) for name, value in named_predictions(outputs)
        ]
        return tf.nest.pack_sequence_as(outputs, gathered)

    def _gathered(self, name: str, value: Any, examples: int | None) -> Any:
        parts = self._strategy.local_results(value)
        if name in self._returned.sums:
            with tf.control_dependencies(
                of_one_shape("The model predicts a sum or a mean over the examples", parts)
            ):
                return self._strategy.reduce("sum", value)
        if name not in self._returned.rows:
            return parts[0]
        change = self._returned.rows[name]
        self._changes_rows |= change is not as_they_are
        if examples is not None:
            # Cuts off padding rows.
            rows = [rows_of_replica(examples, index, len(parts)) for index in range(len(parts))]
            parts = tuple(
                part[: own.stop - own.start] for part, own in zip(parts, rows, strict=True)
            )
        if isinstance(parts[0], tf.SparseTensor | tf.RaggedTensor):
            return joined_rows(parts)
        if self._strategy.num_workers > 1:
            return change(self._strategy.gather(value, axis=0))
        return change(tf.concat(parts, 0))

    def _with_rows_of_other_workers(self, value: Any) -> Any:
        """Gathers a sparse or ragged output from all workers, so that each task has all rows.

        It is a collective: all tasks must call it. A dense output is returned unchanged, because
        `_gathered` has already gathered its rows.

        Args:
            value: This task's rows of one output of the model.
        """
        if isinstance(value, tf.RaggedTensor):
            lengths = [self._of_each_worker(each) for each in value.nested_row_lengths()]
            flat = self._of_each_worker(value.flat_values)
            return tf.RaggedTensor.from_nested_row_lengths(flat, lengths)
        if not isinstance(value, tf.SparseTensor):
            return value
        shapes = self._of_each_worker(value.dense_shape[None])
        counts = self._of_each_worker(tf.shape(value.values, out_type=tf.int64))
        indices, values = map(self._of_each_worker, (value.indices, value.values))
        ends = np.repeat(np.cumsum(shapes[:, 0]), counts)
        firsts = ends - np.repeat(shapes[:, 0], counts)
        indices += tf.pad(firsts[:, None], [[0, 0], [0, indices.shape[1] - 1]])
        shape = [int(np.sum(shapes[:, 0])), *np.max(shapes[:, 1:], 0)]
        return tf.SparseTensor(indices, values, shape)

    def _of_each_worker(self, own: tf.Tensor) -> tf.Tensor:
        """Concatenates the rows that all workers have of a tensor, in the order of the workers.

        It is a collective: all tasks must call it, outside of a graph.

        Args:
            own: This task's rows.
        """
        return self._strategy.gather_parts(
            [own, *[own[:0]] * (self._strategy.num_local_replicas - 1)]
        )


class _Rows(NamedTuple):
    """The rows of one output of a model for several batches, collected in a loop within a graph.

    Attributes:
        rows: A `tf.TensorArray`. Item i is a tensor with the rows of batch i.
        sizes: A `tf.TensorArray`. Item i is the number of rows of batch i, an int32 scalar.
    """

    rows: tf.TensorArray
    sizes: tf.TensorArray

    @classmethod
    def none(cls, spec: Any) -> _Rows:
        """Creates an object without rows, to be filled by `write`, for an output of this spec."""
        shape = [None, *spec.shape[1:]]
        return cls(
            tf.TensorArray(spec.dtype, 0, True, infer_shape=False, element_shape=shape),
            tf.TensorArray(tf.int32, 0, True, element_shape=[]),
        )

    def write(self, index: tf.Tensor, value: tf.Tensor) -> _Rows:
        """Returns an object that also has `value`, the rows of batch number `index`."""
        size = tf.shape(value)[0]
        return _Rows(self.rows.write(index, value), self.sizes.write(index, size))

    def all(self, batches: tf.Tensor, spec: Any) -> tf.Tensor:
        """Returns the rows of all batches as one tensor, in the order of the batches.

        Args:
            batches: The number of batches.
            spec: The spec of the output of one batch.
        """
        empty = tf.zeros([0, *spec.shape[1:]], spec.dtype)
        return tf.cond(batches > 0, self.rows.concat, lambda: empty)


def _has_ranks(spec: Any) -> bool:
    """Returns whether the rank of each tensor of an element spec is known."""
    parts = tf.nest.flatten(spec, expand_composites=True)
    return all(part.shape.rank is not None for part in parts)


def _is_stackable(spec: Any) -> bool:
    """Returns whether outputs of this spec can be joined within a graph, batch after batch.

    They can be joined if they are dense tensors with rows, and all dimensions but the number of
    rows are known.
    """
    if not isinstance(spec, (tf.Tensor, tf.TensorSpec)):
        return False
    return bool(spec.shape.rank) and spec.shape[1:].is_fully_defined()


def concatenate(outputs: list[Any]) -> Any:
    """Concatenates the outputs of several batches into arrays with a row for each example.

    If the inner dimensions of the batches differ, the result is a `tf.RaggedTensor`, as in Keras.
    Sparse and ragged outputs stay sparse or ragged. A scalar output becomes an array with an item
    for each batch, or stays a scalar if there is only one.

    Args:
        outputs: The outputs of each batch, in the structure of the model's outputs; or those of
            several batches, that were concatenated before.

    Raises:
        ValueError: If there is no batch.
    """
    if not outputs:
        raise ValueError("`x` has no batch to predict: it ended before the first one.")
    return keras.tree.map_structure(lambda *parts: _joined(list(parts)), *outputs)


def joined_rows(parts: Sequence[Any]) -> Any:
    """Concatenates sparse or ragged tensors along the first axis; inner dimensions may differ."""
    if isinstance(parts[0], tf.SparseTensor):
        return tf.sparse.concat(0, list(parts), expand_nonconcat_dims=True)
    return tf.concat(list(parts), 0)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], tf.SparseTensor | tf.RaggedTensor):
        return joined_rows(parts)
    if any(isinstance(part, tf.RaggedTensor) for part in parts):
        return tf.concat(parts, 0)  # batches of other inner sizes, some of which were concatenated
    if len(parts) == 1:
        return np.array(parts[0])  # the program may write to it, as to Keras' arrays
    arrays = [np.asarray(part) for part in parts]
    arrays = [np.atleast_1d(array) for array in arrays]  # scalars, perhaps of several batches
    if len({array.shape[1:] for array in arrays}) == 1:
        return np.concatenate(arrays)
    same_tail = 0
    for sizes in zip(*(array.shape[:0:-1] for array in arrays), strict=True):
        if len(set(sizes)) > 1:
            break
        same_tail += 1
    shape = arrays[0].shape[arrays[0].ndim - same_tail :] if same_tail else ()
    return tf.ragged.constant(arrays, inner_shape=shape or None).merge_dims(0, 1)
