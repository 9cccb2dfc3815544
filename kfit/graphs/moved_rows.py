"""Finds out from the graph whether an operation moves values along the axis of the examples.

After such an operation, such as `tf.roll`, the row of an example contains values of another one, or
of several.
"""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from kfit.graphs.chosen_rows import is_chosen_by_place
from kfit.graphs.one_example import takes_one_example
from kfit.graphs.origins import Origins
from kfit.graphs.placed_axes import parts_of_slice
from kfit.graphs.row_blocks import are_copies, elements_of_row
from kfit.graphs.row_indices import are_all_places, are_selected, shift_places, undo_unique
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sizes import are_numbers
from kfit.graphs.sources import used_by

Tensor = Any

_MOVING = {
    "Cumprod": 1,
    "CumulativeLogsumexp": 1,
    "Cumsum": 1,
    "GatherV2": 2,
    "RandomShuffle": None,
    "StatelessShuffle": None,
    "ReverseV2": 1,
    "Roll": 2,
}
"""Operations that put rows to the places of others, and the index of their input `axis`."""
_ALONG_THE_LAST = {
    **dict.fromkeys(("IsotonicRegression", "LogSoftmax", "LRN", "Softmax", "TopKV2"), 1),
    **dict.fromkeys(("FFT", "IFFT", "IRFFT", "RFFT"), 1),
    **dict.fromkeys(("Cholesky", "LogMatrixDeterminant", "MatrixBandPart"), 2),
    **dict.fromkeys(("MatrixDeterminant", "MatrixInverse"), 2),
    **dict.fromkeys(("Qr", "SelfAdjointEigV2", "Svd"), 2),
    **dict.fromkeys(("FFT2D", "IFFT2D", "IRFFT2D", "RFFT2D"), 2),
    **dict.fromkeys(("FFT3D", "IFFT3D", "IRFFT3D", "RFFT3D"), 3),
}
"""Operations along the last axes, and along how many of them."""
_SOLVING = {"MatrixSolve", "MatrixSolveLs", "MatrixTriangularSolve"}
_ALONG_ALL_BUT_THE_FIRST = {
    *("AvgPool", "AvgPool3D", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "Dilation2D"),
    *("ExtractImagePatches", "ExtractVolumePatches", "MaxPool", "MaxPool3D", "MaxPoolV2"),
}
_QUANTIZING = {f"QuantizeAndDequantizeV{version}" for version in (2, 3, 4)}
_SCATTERING = {
    *("TensorScatterAdd", "TensorScatterMax", "TensorScatterMin", "TensorScatterSub"),
    *("GatherNd", "TensorScatterUpdate"),
}
"""Operations that read or change rows at given places."""
_PLACED = {
    **dict.fromkeys(_SCATTERING, 1),
    "ScatterNd": 0,
    **dict.fromkeys(("TensorListGather", "TensorListScatter", "TensorListScatterV2"), 1),
    **dict.fromkeys(("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"), 1),
    "UnsortedSegmentSum": 1,
}
"""Operations that take or put rows by indices, and the index of their input of indices."""


def moves_rows(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether an operation moves or accumulates values along the axis of the examples.

    After such an operation, such as `tf.roll`, the row of an example contains values of another one
    or of several. If the axis is not static, the result is True. Selecting rows by a mask does not
    count, since the rows keep their order.

    Args:
        op: An operation of the step.
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    if any(shift_places(each, origins) for each in _indices_of(op)):
        return True
    if not op.inputs or op.inputs[0].dtype in (tf.resource, tf.variant):
        return False
    if op.type in _SOLVING:
        solved = op.inputs[1]
        return solved.shape.rank is not None and rows_axis(solved) == solved.shape.rank - 2
    rows, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
    if op.type == "ConcatV2":
        return _puts_together(op, origins)
    if rows is None or rank is None:
        return rows is not None and op.type in _MOVING
    if op.type == "Tile":
        times = are_numbers(op.inputs[1], rows_axis)
        if times is not None and times[rows] is False:
            return False
        return used_by(op.inputs[1], origins) == {"count"}  # such as for all pairs of examples
    if op.type in _MOVING:
        return _moves_along(op, rows, rank, origins)
    if op.type == "Reshape":
        return _mixes_rows(op)
    if op.type == "ReverseSequence":
        return bool(op.get_attr("seq_dim") == rows)
    if op.type in _ALONG_THE_LAST:
        return rows >= rank - _ALONG_THE_LAST[op.type]
    if op.type in _ALONG_ALL_BUT_THE_FIRST:
        return rows > 0
    if op.type in _SCATTERING:
        return rows == 0 and rows_axis(op.inputs[1]) is None
    if op.type in _QUANTIZING:  # by the least and the largest value, of all or in each slice
        return not op.get_attr("range_given") and op.get_attr("axis") != rows
    if op.type == "StridedSlice":
        parts = [index for index, axis in parts_of_slice(op, rank) if axis == rows]
        steps = tf.get_static_value(op.inputs[3])
        return parts[0] is not None and steps is not None and bool(steps[parts[0]] < 0)
    return False


def _indices_of(op: tf.Operation) -> list[Tensor]:
    """Returns the indices by which an operation of `_PLACED`, or a stitch, takes or puts rows."""
    if op.type in ("DynamicStitch", "ParallelDynamicStitch"):
        return list(op.inputs[: len(op.inputs) // 2])
    return [op.inputs[_PLACED[op.type]]] if op.type in _PLACED else []


def _mixes_rows(op: tf.Operation) -> bool:
    """Returns whether a reshape puts values of several examples into one row.

    So does `tf.reshape(tf.transpose(x), tf.shape(x))`, which has the values in another order, and
    `tf.reshape(tf.tile(x, [2, 1]), (-1, 2, d))`, which has two examples in each row, instead of two
    copies of one.
    """
    data, result = op.inputs[0], op.outputs[0]
    of_row, of_new_row = elements_of_row(data), elements_of_row(result)
    if of_row is None or of_new_row is None:
        return False  # the static sizes do not show it
    before, after = data.shape.as_list(), result.shape.as_list()
    axis, at = before.index(None), after.index(None)
    if of_row == of_new_row:
        return math.prod(before[:axis]) != math.prod(after[:at])
    return axis == at == 0 and of_row < of_new_row and are_copies(data, rows_axis)


def _moves_along(op: tf.Operation, rows: int, rank: int, origins: Origins) -> bool:
    """Returns whether an operation of `_MOVING` works along the axis of the examples."""
    axis = _MOVING[op.type]
    if axis is None:
        return rows == 0
    if op.type == "GatherV2" and (op.get_attr("batch_dims") or are_selected(op.inputs[1])):
        return False  # within each example, or by a mask, in their order
    if takes_one_example(op):
        return False
    if op.type == "GatherV2" and (
        are_all_places(op.inputs[1]) or undo_unique(op.inputs[0], op.inputs[1], origins)
    ):
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
