"""Tells where an operation puts an axis of its input, such as a transposition."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

BROADCASTING = {
    *("Add", "AddV2", "ApproximateEqual", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
    *("BroadcastTo", "Complex", "Div", "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater"),
    *("GreaterEqual", "Igamma", "IgammaGradA", "Igammac", "LeftShift", "Less", "LessEqual"),
    *("LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan", "NextAfter"),
    *("NotEqual", "Polygamma", "Pow", "RandomGammaGrad", "RealDiv", "RightShift", "SelectV2"),
    *("SquaredDifference", "Sub", "TruncateDiv", "TruncateMod", "Xdivy", "Xlog1py", "Xlogy"),
    "Zeta",
}
"""Operations on tensors whose axes are matched from the last one on."""
_REDUCING = {
    *("Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "EuclideanNorm"),
}
_MATRICES = {"MatMul", "BatchMatMulV2", "BatchMatMulV3"}
KNOWN = {
    *("Transpose", "ExpandDims", "Pack", "Squeeze", "Unpack", "OneHot", "StridedSlice", "Einsum"),
    *("GatherV2", "Identity", "Cast", "Square", "Sqrt", "Neg", "Exp", "Log", "Softmax"),
    *BROADCASTING,
    *_REDUCING,
    *_MATRICES,
}
"""Operations of which `placed` tells everything, so that an axis may be gone after them."""


def placed(op: tf.Operation, index: int, axis: int) -> int | None:
    """Returns where an axis of an input is in the result of an operation; None if it is gone.

    If the graph does not show it, it is taken for the first axis whose size is not static.

    Args:
        op: The operation.
        index: The index of the input.
        axis: The axis of this input.
    """
    rank, of_result = op.inputs[index].shape.rank, op.outputs[0].shape.rank
    if rank is None or of_result is None:
        return _first_open(op)
    if op.type == "Transpose":
        order = tf.get_static_value(op.inputs[1])
        return _in_exchanged(op, axis, rank) if order is None else list(order).index(axis)
    if op.type in _REDUCING:
        return _in_reduced(op, axis, rank)
    if op.type in ("ExpandDims", "Pack", "Squeeze", "Unpack", "OneHot"):
        return _beside_others(op, axis, rank)
    if op.type == "StridedSlice":
        return _in_slice(op, axis, rank)
    if op.type in _MATRICES:
        role = role_in_product(op, index, axis)
        return {"summed": None, "free": of_result - 2 + index}.get(role, axis + of_result - rank)
    if op.type == "Einsum":
        return _in_einsum(op, index, axis)
    if op.type == "GatherV2":
        return _in_gathered(op, index, axis)
    if op.type == "Where":
        return 0
    if op.type in BROADCASTING:
        return axis + of_result - rank
    return axis if axis < of_result else None


def _first_open(op: tf.Operation) -> int | None:
    shape = op.outputs[0].shape
    sizes = [None] if shape.rank is None else shape.as_list()
    return sizes.index(None) if None in sizes else None


def _in_exchanged(op: tf.Operation, axis: int, rank: int) -> int:
    """Returns where an axis is if TensorFlow computes the order, to put one axis to the end."""
    open_axes = [each for each, size in enumerate(op.outputs[0].shape) if size is None]
    if len(open_axes) == 1:
        return open_axes[0]
    return rank - 1 if axis < rank - 1 else 0


def _in_reduced(op: tf.Operation, axis: int, rank: int) -> int | None:
    at = tf.get_static_value(op.inputs[1])
    if at is None:
        return _first_open(op)
    reduced = {int(each) % rank for each in at.reshape(-1)}
    if axis in reduced:
        return None
    is_kept = op.type not in ("ArgMax", "ArgMin") and op.get_attr("keep_dims")
    return axis if is_kept else axis - sum(1 for each in reduced if each < axis)


def _beside_others(op: tf.Operation, axis: int, rank: int) -> int | None:
    """Returns where an axis is after others were added or taken away."""
    if op.type == "Squeeze":
        dims = op.get_attr("squeeze_dims")
        gone = {each % rank for each in dims} if dims else _of_size_one(op.inputs[0])
        return None if axis in gone else axis - sum(1 for each in gone if each < axis)
    if op.type == "Unpack":
        at = op.get_attr("axis") % rank
        return None if at == axis else axis - (at < axis)
    at = tf.get_static_value(op.inputs[1]) if op.type == "ExpandDims" else op.get_attr("axis")
    return _first_open(op) if at is None else axis + (int(at) % (rank + 1) <= axis)


def _of_size_one(tensor: Any) -> set[int]:
    return {axis for axis, size in enumerate(tensor.shape) if size == 1}


def _in_slice(op: tf.Operation, axis: int, rank: int) -> int | None:
    dropped = op.get_attr("shrink_axis_mask")
    parts = parts_of_slice(op, rank)
    at = next(place for place, (_, of) in enumerate(parts) if of == axis)
    is_left = [index is None or not dropped >> index & 1 for index, _ in parts]
    return sum(is_left[:at]) if is_left[at] else None


def _in_gathered(op: tf.Operation, index: int, axis: int) -> int | None:
    at, rank = tf.get_static_value(op.inputs[2]), op.inputs[1].shape.rank
    each = op.get_attr("batch_dims")
    if at is None or rank is None or op.inputs[0].shape.rank is None:
        return _first_open(op)
    at = int(at) % op.inputs[0].shape.rank
    if index == 1:
        return axis if axis < each else at + axis - each
    if axis < at:
        return axis
    return axis + rank - 1 - each if axis > at else (at if rank > each else None)


def _in_einsum(op: tf.Operation, index: int, axis: int) -> int | None:
    label = label_of(op, index, axis)
    result = op.get_attr("equation").decode().partition("->")[2].strip()
    before, ellipsis, after = result.partition("...")
    if label in before:
        return before.index(label)
    rank = op.outputs[0].shape.rank
    if label in after:
        return rank - len(after) + after.index(label)
    return len(before) if label == ellipsis else None


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


def label_of(op: tf.Operation, index: int, axis: int) -> str:
    """Returns the letter that an Einsum, such as "ab,cb->ac", has for an axis of an input.

    Args:
        op: The operation.
        index: The index of the input.
        axis: The axis of this input.
    """
    part = op.get_attr("equation").decode().partition("->")[0].split(",")[index].strip()
    before, ellipsis, after = part.partition("...")
    if axis < len(before):
        return str(before[axis])
    rank = op.inputs[index].shape.rank
    from_end = axis - (rank or axis + 1)
    return str(after[from_end]) if -from_end <= len(after) else ellipsis


def role_in_product(op: tf.Operation, index: int, axis: int) -> str:
    """Returns what a matrix product does along an axis of one of its factors.

    Args:
        op: The operation.
        index: The index of the factor, 0 or 1.
        axis: The axis of this factor.

    Returns:
        "batch" if there is a product for each element, "summed" if the product sums over the
        elements, and "free" if it has a row or a column for each.
    """
    rank = op.inputs[index].shape.rank
    if rank is None or axis < rank - 2:
        return "batch"
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    is_last = (axis == rank - 1) != op.get_attr(names[index])
    return "summed" if is_last == (index == 0) else "free"
