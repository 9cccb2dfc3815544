"""Finds out from the graph which axis of a tensor is that of a replica's examples.

It is the first one, until an operation such as a transposition puts it to another place. TensorFlow
itself writes an operation along the first axis, such as `tf.nn.softmax(x, axis=0)`, as one along
the last axis between two transpositions.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Tensor = Any

_MOST_TENSORS = 100
"""How many tensors are followed back from one to the examples that it is computed from."""


def has_rows(tensor: Tensor) -> bool:
    """Returns whether a tensor may have a row for each example, as far as its static shape shows.

    It is meant for graphs in which the number of examples is not static (`Replica.hides_rows`).
    There a tensor with a row for each example has None as the first size of its static shape. A
    tensor of unknown rank may have rows, too.
    """
    rank = tensor.shape.rank
    return rank is None or bool(rank and tensor.shape[0] is None)


def rows_axis(tensor: Tensor, known: dict[int, int | None] | None = None) -> int | None:
    """Returns the axis of a tensor that has an element for each example; None if no axis has one.

    Args:
        tensor: A tensor of a graph in which the number of examples is not static.
        known: The axes that were found already, by the ids of the tensors.
    """
    if has_rows(tensor):
        return 0
    known = {} if known is None else known
    if id(tensor) not in known:
        known[id(tensor)] = None
        known[id(tensor)] = _axis_from_inputs(tensor, known) if len(known) < _MOST_TENSORS else None
    return known[id(tensor)]


def _axis_from_inputs(tensor: Tensor, known: dict[int, int | None]) -> int | None:
    open_axes = [axis for axis, size in enumerate(tensor.shape) if size is None]
    for each in tensor.op.inputs if open_axes else ():
        if each.dtype in (tf.resource, tf.variant) or each.shape.rank is None:
            continue
        axis = rows_axis(each, known)
        placed = None if axis is None else _placed(tensor.op, axis, each.shape.rank)
        if placed in open_axes:
            return placed
    return None


def _placed(op: tf.Operation, axis: int, rank: int) -> int | None:
    """Returns where the axis of the examples of an input is in the result of an operation.

    Args:
        op: The operation.
        axis: The axis of the examples in an input.
        rank: The number of axes of that input.
    """
    rank_of_result = op.outputs[0].shape.rank
    if op.type == "Transpose":
        order = tf.get_static_value(op.inputs[1])
        # TensorFlow itself computes the order of axes of which it puts one to the end.
        return rank - 1 if order is None else list(order).index(axis)
    if op.type in ("ExpandDims", "Pack"):
        at = op.get_attr("axis") if op.type == "Pack" else tf.get_static_value(op.inputs[1])
        return None if at is None else axis + (int(at) % (rank + 1) <= axis)
    if op.type == "StridedSlice":
        dropped = op.get_attr("shrink_axis_mask")
        parts = parts_of_slice(op, rank)
        before = parts[: next(i for i, (_, of) in enumerate(parts) if of == axis)]
        return sum(1 for index, _ in before if index is None or not dropped >> index & 1)
    return axis + rank_of_result - rank if rank_of_result and rank_of_result >= rank else None


def parts_of_slice(op: tf.Operation, rank: int) -> list[tuple[int | None, int | None]]:
    """Returns what a slice, such as `x[:, None, ::-1]`, does to each axis, in their order.

    Args:
        op: The operation, a StridedSlice.
        rank: The number of axes of the tensor that is sliced.

    Returns:
        Pairs of the index of a part of the slice, and of the axis that it belongs to. The index is
        None for an axis that is left as it is, and the axis is None if the part adds one.
    """
    count = op.inputs[1].shape[0] or 0
    ellipsis, added = op.get_attr("ellipsis_mask"), op.get_attr("new_axis_mask")
    parts: list[tuple[int | None, int | None]] = []
    axis = 0
    for index in range(count):
        if ellipsis >> index & 1:
            rest = sum(1 for each in range(index + 1, count) if not added >> each & 1)
            parts += [(None, each) for each in range(axis, rank - rest)]
            axis = rank - rest
        elif added >> index & 1:
            parts.append((index, None))
        else:
            parts.append((index, axis))
            axis += 1
    return parts + [(None, each) for each in range(axis, rank)]
