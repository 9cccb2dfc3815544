"""Shuffles of a tf.data pipeline that draw their order late: when a pass is read.

A `shuffle` draws a seed for each pass from a count of its own. Mostly that is when the pass is
begun, so that a pass of earlier times need only be begun to be accounted for. But a `shuffle` makes
its input's iterator with the first element that it is asked for, so another one before it draws
only then; `concatenate` begins its second part when the first is used up; `repeat` begins its
input anew, and a function (of `flat_map` or `interleave`) a data set that was made outside of it,
as often as they come to it.
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
"""When a part of a pipeline is begun: with the pass, with its first batch, or any time within."""


@dataclass(frozen=True)
class LateShuffles:
    """What draws late in a pipeline.

    Attributes:
        with_first_batch: What draws with the first batch of a pass, as often as it does.
        draws_within: Whether anything draws within a pass, as often as that comes to it.
    """

    with_first_batch: tuple[tf.data.Dataset, ...] = ()
    draws_within: bool = False

    def __bool__(self) -> bool:
        return bool(self.with_first_batch) or self.draws_within

    def begin(self) -> None:
        """Draws what the first batch of a pass draws, without reading one."""
        for part in self.with_first_batch:
            iter(part)  # it draws from the same count, wherever it is begun from

    @classmethod
    def of(cls, dataset: tf.data.Dataset) -> LateShuffles:
        """Looks for them.

        Private: attributes of data sets and `Dataset._functions`, since no public method tells what
        a pipeline is made of.
        """
        begun = list(_begun(dataset))
        drawing = [(part, when) for part, when in begun if _draws_anew(part)]
        return cls(
            tuple(part for part, when in drawing if when == _WITH_FIRST_BATCH),
            any(when == _WITHIN for _, when in drawing)
            or any(_captures_shuffles(part) for part, _ in begun),
        )


def draws_anew(dataset: tf.data.Dataset) -> bool:
    """Whether each pass over a pipeline has an order of its own, drawn from a count of passes."""
    return any(_draws_anew(part) for part, _ in _begun(dataset))


def _begun(dataset: tf.data.Dataset) -> Iterator[tuple[Any, int]]:
    """Each part of a pipeline and when it is begun, once for each place that it is read from."""
    stack: list[tuple[Any, int]] = [(dataset, _AT_ONCE)]
    while stack:
        part, when = stack.pop()
        yield part, when
        kind = type(part).__name__
        if kind in ("_ShuffleDataset", "_CopyToDeviceDataset"):
            when = max(when, _WITH_FIRST_BATCH)
        elif "RepeatDataset" in kind and repeat_count(part) != 1:
            when = _WITHIN
        # A reader of files is made of other data sets.
        inner = reader_of(part)
        inputs = inputs_of(part) if inner is None else [inner]
        for number, found in enumerate(inputs):
            is_second = kind == "_ConcatenateDataset" and number > 0
            stack.append((found, _WITHIN if is_second else when))


def _draws_anew(part: Any) -> bool:
    """Whether a part draws a seed for each pass."""
    kind = type(part).__name__
    if kind == "_ShuffleDataset":
        return reshuffles(part)
    return kind == "_ShuffleAndRepeatDataset" or draws_other_numbers(part)


def _captures_shuffles(part: Any) -> bool:
    """Whether a function reads from a data set, made outside of it, that draws for each pass."""
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
    """The operations of a data set; of a variant that is none (a ragged tensor) none."""
    try:
        serialized = tf.raw_ops.DatasetToGraphV2(
            input_dataset=variant,
            external_state_policy=1,  # ignore: the graph is looked at, never run
            strip_device_assignment=True,
        )
    except tf.errors.InvalidArgumentError:
        return []
    return [node for scope in scopes_of(GraphDef.FromString(serialized.numpy())) for node in scope]
