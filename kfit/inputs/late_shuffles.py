"""Finds shuffles of a tf.data pipeline that draw seeds late: while a pass is read.

A pipeline is composed of data sets (`shuffle`, `map`, `batch`, ...), which are called its parts.
A `shuffle` draws a seed for each pass from its own sequence of seeds. Usually it does so when the
iterator of the pass is created. To reproduce the seeds of later passes, it is then enough to create
the iterators of earlier ones. But some iterators of inputs are created later:
- A `shuffle` creates its input's iterator when its first element is read. So an earlier `shuffle`
  in the pipeline draws its seed only then.
- `concatenate` creates the iterator of its second part when the first part has ended.
- `repeat` creates an iterator of its input each time it begins again.
- The function of a `flat_map` or `interleave` may return a data set that was made outside of the
  function; an iterator of it is created for each element.
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
    """The parts of a pipeline that draw seeds late: while a pass is read.

    Attributes:
        with_first_batch: The parts that draw a seed with the first batch of a pass. A part that is
            read from several places is listed once for each place.
        draws_within: Whether some part draws seeds after the first batch of a pass.
    """

    with_first_batch: tuple[tf.data.Dataset, ...] = ()
    draws_within: bool = False

    def __bool__(self) -> bool:
        return bool(self.with_first_batch) or self.draws_within

    def begin(self) -> None:
        """Draws the seeds that the first batch of a pass draws, without reading a batch."""
        for part in self.with_first_batch:
            iter(part)  # every iterator draws from the same sequence of seeds

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> LateShuffles:
        """Finds the parts of a pipeline that draw seeds while a pass is read."""
        begun = list(_begun(dataset))
        drawing = [(part, when) for part, when in begun if _draws_anew(part)]
        return cls(
            tuple(part for part, when in drawing if when == _WITH_FIRST_BATCH),
            any(when == _WITHIN for _, when in drawing)
            or any(_captures_shuffles(part) for part, _ in begun),
        )


def draws_anew(dataset: tf.data.Dataset) -> bool:
    """Returns whether each pass over a pipeline draws new seeds, so that passes differ in order."""
    return any(_draws_anew(part) for part, _ in _begun(dataset))


def _begun(dataset: tf.data.Dataset) -> Iterator[tuple[Any, int]]:
    """Yields each part of a pipeline, and when its iterator is created (`_AT_ONCE`, ...).

    A part is yielded once for each place that reads it.
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
    """Returns whether a part of a pipeline draws a new seed for each pass."""
    kind = type(part).__name__
    if kind == "_ShuffleDataset":
        return reshuffles(part)
    return kind == "_ShuffleAndRepeatDataset" or draws_other_numbers(part)


def _captures_shuffles(part: Any) -> bool:
    """Returns whether a function of this part reads an outer data set that draws new seeds.

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
    """Returns the operations of a data set that is given as a variant tensor.

    The list is empty if the variant holds something else, such as a ragged tensor.
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
