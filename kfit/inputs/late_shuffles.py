"""Finds the shuffles of a tf.data pipeline that draw seeds late: while data is read.

A pass is one reading of all the data, by one iterator. A pipeline is composed of data sets
(`shuffle`, `map`, `batch`, ...), which are called its parts. A `shuffle` draws a seed for each pass
from its own sequence of seeds, usually when the iterator of the pass is created. A resumed training
must give each pass the seed that it would have had. For this it is usually enough to create the
iterators of the earlier passes, without reading from them. But some parts create the iterators of
their inputs later, so that a `shuffle` among these inputs draws its seed only then:
- A `shuffle` creates the iterator of its input when the first element is read.
- `concatenate` creates the iterator of its second part when the first part has ended.
- `repeat` creates an iterator of its input each time it begins again.
- The function of a `flat_map` or `interleave` may return a data set that was made outside of the
  function; an iterator of that data set is created for each element.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from kfit.distribute.pipeline_seeds import scopes_of
from kfit.internals.tf_data import (
    draws_other_numbers,
    functions_of,
    inputs_of,
    reader_of,
    repeat_count,
    reshuffles,
)

_AT_ONCE, _WITH_FIRST_BATCH, _WITHIN = range(3)
"""When the iterator of a part is created: with the pass, with its first batch, or later."""


@dataclass(frozen=True)
class LateShuffles:
    """The data sets in a tf.data pipeline that draw seeds late: while data is read.

    Usually a `shuffle` draws a seed when an iterator of the pipeline is created. When training
    resumes, it is then enough to create iterators to draw the same seeds again. It is not enough
    for the data sets that this object describes.

    Attributes:
        with_first_batch: The data sets, such as a `shuffle`, that draw a seed when an iterator's
            first batch is read. A data set that is read from several places of the pipeline is
            listed once for each place.
        draws_within: Whether some data set in the pipeline draws seeds after the first batch.
    """

    with_first_batch: tuple[tf.data.Dataset, ...] = ()
    draws_within: bool = False

    def __bool__(self) -> bool:
        return bool(self.with_first_batch) or self.draws_within

    def begin(self) -> None:
        """Draws the seeds that are usually drawn when the first batch is read, but reads no batch.

        Used when training resumes, so that the following seeds are the same as without a restart.
        """
        for part in self.with_first_batch:
            iter(part)  # every iterator draws from the same sequence of seeds

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> LateShuffles:
        """Finds the parts of a tf.data pipeline that draw seeds while data is read."""
        begun = list(_begun(dataset))
        drawing = [(part, when) for part, when in begun if _draws_anew(part)]
        return cls(
            tuple(part for part, when in drawing if when == _WITH_FIRST_BATCH),
            any(when == _WITHIN for _, when in drawing)
            or any(_captures_shuffles(part) for part, _ in begun),
        )


def draws_anew(dataset: tf.data.Dataset) -> bool:
    """Returns whether a pipeline draws new seeds, and so has a new order, each time it is read."""
    return bool(shuffles_of(dataset))


def shuffles_of(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Returns the parts of a pipeline that draw new seeds each time it is read."""
    return [part for part, _ in _begun(dataset) if _draws_anew(part)]


def source_of_orders(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set by which the passes over a pipeline are counted.

    Several pipelines may read one `shuffle`, such as `shuffled.skip(n)` and `shuffled.take(n)`.
    They draw from one sequence of seeds, so their passes are counted together, by this `shuffle`.

    Returns:
        The only part of the pipeline that draws new seeds, if it does so when an iterator of the
        pipeline is created; otherwise the pipeline itself.
    """
    begun = list(_begun(dataset))
    drawing = [(part, when) for part, when in begun if _draws_anew(part)]
    is_one = len(drawing) == 1 and drawing[0][1] == _AT_ONCE
    if not is_one or any(_captures_shuffles(part) for part, _ in begun):
        return dataset
    source: tf.data.Dataset = drawing[0][0]
    return source


def _begun(dataset: tf.data.Dataset) -> Iterator[tuple[Any, int]]:
    """Yields each data set in a pipeline, and when the iterator of this data set is created.

    The time is `_AT_ONCE`, `_WITH_FIRST_BATCH` or `_WITHIN`. A data set that is read at several
    places of the pipeline is yielded once for each place.
    """
    stack: list[tuple[Any, int]] = [(dataset, _AT_ONCE)]
    while stack:
        part, when = stack.pop()
        yield part, when
        kind = type(part).__name__
        if kind in ("_ShuffleDataset", "_CopyToDeviceDataset"):
            when = max(when, _WITH_FIRST_BATCH)
        elif "RepeatDataset" in kind and repeat_count(part) != 1:
            when = _WITHIN
        # A reader of files consists of other data sets.
        inner = reader_of(part)
        inputs = inputs_of(part) if inner is None else [inner]
        for number, found in enumerate(inputs):
            is_second = kind == "_ConcatenateDataset" and number > 0
            stack.append((found, _WITHIN if is_second else when))


def _draws_anew(part: Any) -> bool:
    """Returns whether one data set in a pipeline draws a new seed for each of its iterators."""
    kind = type(part).__name__
    if kind == "_ShuffleDataset":
        return reshuffles(part)
    return kind == "_ShuffleAndRepeatDataset" or draws_other_numbers(part)


def _captures_shuffles(part: Any) -> bool:
    """Returns whether a function of a data set reads another data set that draws new seeds.

    An example is `flat_map(lambda x: shuffled)`, where `shuffled` was made outside of the function.
    """
    captured = [
        tensor
        for function in functions_of(part)
        for tensor in function.captured_inputs
        if tensor.dtype == tf.variant
    ]
    return any(
        node.attr["reshuffle_each_iteration"].b or node.attr["rerandomize_each_iteration"].b
        for tensor in captured
        for node in operations_of(tensor)
    )


def operations_of(variant: tf.Tensor) -> list[NodeDef]:
    """Returns the operations in the graph of a data set.

    Args:
        variant: The data set as a variant tensor, the form in which graphs refer to data sets. If
            the tensor holds something else, such as a ragged tensor, the result is empty.
    """
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant,
            external_state_policy=1,  # ignore: the graph is only inspected, never run
            strip_device_assignment=True,
        )
    except tf.errors.InvalidArgumentError:
        return []
    return [node for scope in scopes_of(GraphDef.FromString(serialized.numpy())) for node in scope]
