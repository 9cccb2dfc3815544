"""Finds tensors of a loop over the examples that TensorFlow vectorizes.

`tf.vectorized_map` and `GradientTape.jacobian` trace their loop once, for one iteration, and make
operations on all examples of it afterwards. During the trace a tensor belongs to one example,
although it has no axis of examples. It is one value for each example: the loop stacks them.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from kfit.graphs.inputs_first import find_inputs_first
from kfit.graphs.rows_axis import gathers_rows

Tensor = Any

_LOOP_BODY = "loop_body/"
"""What TensorFlow writes into the names of the operations that it will vectorize."""

_known: WeakKeyDictionary[Any, dict[str, bool]] = WeakKeyDictionary()
"""Whether operations are of one example, by their names, for each graph."""


def is_of_one_example(tensor: Tensor) -> bool:
    """Returns whether a tensor is computed from one example, in a loop that is vectorized.

    The graph must be one in which the number of examples is not static (`Replica.hides_rows`).

    Args:
        tensor: A tensor of a graph.
    """
    known = _known.setdefault(tensor.graph, {})

    def find(op: tf.Operation) -> bool:
        return takes_one_example(op) or any(known.get(each.op.name) for each in op.inputs)

    return bool(
        find_inputs_first(
            tensor.op,
            known,
            key=lambda op: op.name,
            inputs=lambda op: (each.op for each in op.inputs),
            find=find,
        )
    )


def takes_one_example(op: tf.Operation) -> bool:
    """Returns whether an operation takes the example of the iteration out of the batch."""
    if op.type != "GatherV2" or not gathers_rows(op):
        return False
    index = op.inputs[1]
    if index.op.type == "SelectV2":  # 0 for a batch of one example, which goes with each other
        index = index.op.inputs[1]
    return index.op.type == "PlaceholderWithDefault" and _LOOP_BODY in index.op.name
