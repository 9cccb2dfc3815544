"""Finds out from the graph whether a loss combines a replica's examples with each other.

A contrastive loss, for example, compares each example with all others. On a replica the others are
the replica's own examples only, so the loss depends on how many replicas there are. If the loss
ends with a mean, its last operation does not show this. So the operations before it are examined,
too: all of them from the loss back to the products of layers (such as matrix products and
convolutions), and before these products those that no layer has made, such as the reversal of a
batch that a `train_step` mixes with itself.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import (
    CALLS,
    CONTRACTIONS,
    LAYERS,
    is_chosen_by_place,
    made_from,
    used_by,
)
from kfit.exactness.code_of_steps import is_of_step
from kfit.exactness.origins import Origins
from kfit.exactness.replica_context import Replica
from kfit.exactness.rows_axis import has_rows, parts_of_slice, rows_axis

Tensor = Any

_RESHAPING = {"ExpandDims", "Pack", "Reshape", "Squeeze", "Transpose", "Unpack"}
_REDUCING = {"Max", "Mean", "Min", "Prod", "Sum"}
_MOVING = {
    "Cumprod": 1,
    "CumulativeLogsumexp": 1,
    "Cumsum": 1,
    "GatherV2": 2,
    "RandomShuffle": None,
    "ReverseV2": 1,
    "Roll": 2,
}
"""Operations that put rows to the places of others, and the index of their input `axis`."""
_ALONG_THE_LAST = {"LogSoftmax": 1, "Softmax": 1, "TopKV2": 1}
_ALONG_MATRICES = {
    *("Cholesky", "LogMatrixDeterminant", "MatrixDeterminant", "MatrixInverse", "MatrixSolve"),
    *("Qr", "SelfAdjointEigV2", "Svd"),
}
_ALONG_ALL_BUT_THE_FIRST = {"AvgPool", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool"}
_SCATTERING = {
    *("TensorScatterAdd", "TensorScatterMax", "TensorScatterMin", "TensorScatterSub"),
    *("GatherNd", "TensorScatterUpdate"),
}
"""Operations that read or change rows at given places."""
_OF_PAIRS = {
    *("Add", "AddV2", "ApproximateEqual", "Atan2", "BitwiseAnd", "BitwiseOr", "BitwiseXor"),
    *("BroadcastTo",),
    *("Div", "DivNoNan", "Equal", "FloorDiv", "FloorMod", "Greater", "GreaterEqual", "Less"),
    *("LessEqual", "LogicalAnd", "LogicalOr", "Maximum", "Minimum", "Mod", "Mul", "MulNoNan"),
    *("NotEqual", "Pow", "RealDiv", "SelectV2", "SquaredDifference", "Sub", "TruncateDiv"),
    *("TruncateMod", "Xdivy", "Xlog1py", "Xlogy"),
}
"""Operations on two tensors whose axes are matched from the last one on."""


def combines_examples(value: Any, replica: Replica) -> bool:
    """Returns whether a loss, or a part of it, combines a replica's examples with each other.

    Three kinds of operations do: a product of the examples' vectors with each other; an operation
    on each example and a statistic of all examples, such as the difference from their mean; and an
    operation along the axis of the examples that moves or accumulates values, such as `tf.roll`. If
    there is no graph that can be read, the result is False.

    Args:
        value: The loss or the part, a tensor of the replica's step.
        replica: The replica that is being traced.
    """
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or not replica.hides_rows:
        return False
    origins = replica.origins
    of_layers = {id(each): each for each in made_from(value, origins, stop=LAYERS | CALLS)}
    return any(
        _combines(tensor, origins) and (id(tensor) in of_layers or is_of_step(tensor.op))
        for tensor in made_from(value, origins, stop=CALLS)
    )


def _combines(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether the operation that makes a tensor combines examples with each other.

    Only this one operation is judged, and not the operations that make its inputs.

    Args:
        tensor: A tensor of the replica's step.
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    op = tensor.op
    if op.type in _RESHAPING or op.type in CALLS:
        return False
    if op.type in CONTRACTIONS:
        return _multiplies_examples(op, origins)
    if _moves_rows(op, origins):
        return "rows" in used_by(op.inputs[0], origins)
    if _numbers_rows(tensor, origins):
        return True
    axis = rows_axis(tensor)
    if axis is None or op.type in _REDUCING:
        return False
    return any(
        "rows" in used_by(each, origins)
        for each in op.inputs
        # Integers may be indices, which need no row of their own for each row of the result.
        if (each.dtype.is_floating or op.type in _OF_PAIRS) and not _has_rows_at(each, axis, op)
    )


def _has_rows_at(tensor: Tensor, axis: int, op: tf.Operation) -> bool:
    """Returns whether an input of an operation has its rows where the result has them.

    In `z[:, None] - z[None]`, for example, the second input has them in another axis.

    Args:
        tensor: The input.
        axis: The axis of the examples in the result.
        op: The operation.
    """
    place, rank, of_result = rows_axis(tensor), tensor.shape.rank, op.outputs[0].shape.rank
    if place is None:
        return False
    if op.type not in _OF_PAIRS or rank is None or of_result is None:
        return True
    return place + of_result - rank == axis


def _numbers_rows(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor holds the place of each example in the batch, as a number to use.

    The places in a replica's part of the batch are not those in the batch. Integers may be indices,
    which do not count: they select an example's own value.
    """
    kind = tensor.op.type
    if kind not in ("Cast", "OneHot", "Range") or not tensor.dtype.is_floating:
        return False
    if rows_axis(tensor) is None or used_by(tensor, origins) != {"count"}:
        return False
    stop = CALLS | LAYERS
    return kind == "OneHot" or any(
        each.op.type == "Range" for each in made_from(tensor, origins, stop=stop)
    )


def _multiplies_examples(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether a product, such as a matrix product, combines examples with each other.

    It does if both factors are computed from examples, and the product has an element for each pair
    of examples. It does not if it sums over the examples, such as the product of a matrix with its
    transpose, nor if it is a batch of products, one for each example.

    Args:
        op: The operation, one of `CONTRACTIONS` (matrix products and Einsum).
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    if not all("rows" in used_by(each, origins) for each in op.inputs):
        return False
    axes = [rows_axis(each) for each in op.inputs]
    if None in axes:  # a statistic of all examples, such as their covariance
        return rows_axis(op.outputs[0]) is not None
    if op.type == "Einsum":
        return len({_label(op, index, axis) for index, axis in enumerate(axes)}) > 1
    return {_role(op, index, axis) for index, axis in enumerate(axes)} not in (
        {"batch"},
        {"summed"},
    )


def _label(op: tf.Operation, index: int, axis: int | None) -> str:
    """Returns the letter that an Einsum, such as "ab,cb->ac", has for the examples of an input.

    Args:
        op: The operation.
        index: The index of the input.
        axis: The axis of the examples in this input.
    """
    assert axis is not None
    part = op.get_attr("equation").decode().partition("->")[0].split(",")[index].strip()
    before, ellipsis, after = part.partition("...")
    if axis < len(before):
        return str(before[axis])
    rank = op.inputs[index].shape.rank
    from_end = axis - (rank or axis + 1)
    return str(after[from_end]) if -from_end <= len(after) else ellipsis


def _role(op: tf.Operation, index: int, axis: int | None) -> str:
    """Returns what a matrix product does along the axis of the examples of one of its factors.

    Args:
        op: The operation.
        index: The index of the factor, 0 or 1.
        axis: The axis of the examples in this factor.

    Returns:
        "batch" if there is a product for each example, "summed" if the product sums over the
        examples, and "free" if it has a row or a column for each.
    """
    assert axis is not None
    rank = op.inputs[index].shape.rank
    if rank is None or axis < rank - 2:
        return "batch"
    names = ("transpose_a", "transpose_b") if op.type == "MatMul" else ("adj_x", "adj_y")
    is_last = (axis == rank - 1) != op.get_attr(names[index])
    return "summed" if is_last == (index == 0) else "free"


def _moves_rows(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether an operation moves or accumulates values along the axis of the examples.

    After such an operation, such as `tf.roll`, the row of an example contains values of another one
    or of several. If the axis is not static, the result is True. Selecting rows by a mask does not
    count, since the rows keep their order.

    Args:
        op: An operation of the step.
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    if not op.inputs or op.inputs[0].dtype in (tf.resource, tf.variant):
        return False
    rows, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
    if op.type == "ConcatV2":
        return _puts_together(op, origins)
    if rows is None or rank is None:
        return rows is not None and op.type in _MOVING
    if op.type == "Tile":
        return used_by(op.inputs[1], origins) == {"count"}  # such as for all pairs of examples
    if op.type in _MOVING:
        return _moves_along(op, rows, rank)
    if op.type in _ALONG_THE_LAST:
        return rows == rank - 1
    if op.type in _ALONG_MATRICES:
        return rows >= rank - 2
    if op.type in _ALONG_ALL_BUT_THE_FIRST:
        return rows > 0
    if op.type in _SCATTERING:
        return rows == 0 and not has_rows(op.inputs[1])
    if op.type == "StridedSlice":
        parts = [index for index, axis in parts_of_slice(op, rank) if axis == rows]
        steps = tf.get_static_value(op.inputs[3])
        return parts[0] is not None and steps is not None and bool(steps[parts[0]] < 0)
    return False


def _moves_along(op: tf.Operation, rows: int, rank: int) -> bool:
    """Returns whether an operation of `_MOVING` works along the axis of the examples."""
    axis = _MOVING[op.type]
    if axis is None:
        return rows == 0
    if op.type == "GatherV2" and (op.get_attr("batch_dims") or _are_selected(op.inputs[1])):
        return False  # within each example, or by a mask, in their order
    if op.type == "GatherV2" and _are_all_places(op.inputs[1]):
        return False  # all rows in their order, as `tf.vectorized_map` takes them
    axes = tf.get_static_value(op.inputs[axis])
    return axes is None or rows in axes.reshape(-1) % rank


def _puts_together(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether a concatenation puts parts of a batch together in another order.

    An example is `tf.concat([x[1:], x[:1]], axis=0)`. To put two whole batches together is none.

    Args:
        op: The operation.
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    *parts, at = op.inputs
    axis, rank = tf.get_static_value(at), op.outputs[0].shape.rank
    if axis is None or rank is None:
        return False
    rows = [rows_axis(each) for each in parts]
    return int(axis) % rank in rows and any(is_chosen_by_place(each, origins) for each in parts)


def _are_all_places(indices: Tensor) -> bool:
    """Returns whether indices are 0, 1, 2 and so on, up to the number of examples.

    TensorFlow may write them with a case for negative ones, and one for a batch of one example.
    """
    indices = _as_computed(indices)
    if indices.op.type == "SelectV2":
        condition, *cases = indices.op.inputs
        of = (condition.op.type, tf.get_static_value(condition.op.inputs[-1]))
        if of not in (("Less", 0), ("Greater", 1)):
            return False
        return _are_all_places(cases[1 if of[0] == "Less" else 0])
    if indices.op.type != "Range":
        return False
    start, limit, delta = indices.op.inputs
    are_steps = (tf.get_static_value(start), tf.get_static_value(delta)) == (0, 1)
    return are_steps and _is_number(limit)


def _is_number(tensor: Tensor) -> bool:
    """Returns whether a tensor is the size of an axis, or the largest of such sizes."""
    tensor = _as_computed(tensor)
    if tensor.op.type == "Max" and tensor.op.inputs[0].op.type == "Pack":
        return all(map(_is_number, tensor.op.inputs[0].op.inputs))
    return tensor.op.type == "StridedSlice" and tensor.op.inputs[0].op.type == "Shape"


def _as_computed(tensor: Tensor) -> Tensor:
    while tensor.op.type in _RESHAPING | {"Cast", "Identity"}:
        tensor = tensor.op.inputs[0]
    return tensor


def _are_selected(indices: Tensor) -> bool:
    """Returns whether indices are those at which a mask is true, as in `tf.boolean_mask`."""
    return bool(_as_computed(indices).op.type == "Where")
