"""Finds out from the graph whether rows are those of all examples, or some were chosen.

They may be chosen by their values, as by `tf.boolean_mask`, or by their place or rank in the batch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.graphs.added_rows import Added, added_rows
from kfit.graphs.code_of_steps import is_of_step
from kfit.graphs.origins import Origins
from kfit.graphs.placed_axes import parts_of_slice
from kfit.graphs.put_together import splits_into_batches, takes_batches
from kfit.graphs.rows_axis import gathers_rows, rows_axis
from kfit.graphs.sources import LAYERS, made_from, used_by
from kfit.internals.graphs import CALLS

Tensor = Any

_REDUCTIONS = {"Mean", "Sum", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"}
_CHOICES_BY_VALUE = {"Where", "DynamicPartition"}
_CHOICES_BY_PLACE = {"TopKV2", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}
_OF_EACH_RAGGED_ROW = {
    *("RaggedGather", "RaggedTensorToTensor", "RaggedTensorToVariant", "SparseToDense"),
    *("SegmentMax", "SegmentMean", "SegmentMin", "SegmentProd", "SegmentSum", "SegmentSumV2"),
    *("SparseSegmentMean", "SparseSegmentSum", "SparseTensorDenseMatMul", "UnsortedSegmentMax"),
    *("CTCLoss", "CTCLossV2"),
    *("UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"),
}
"""Operations that make rows of examples of the values of a ragged or sparse batch."""
_GROUPING = {
    **dict.fromkeys(("SegmentMax", "SegmentMean", "SegmentMin", "SegmentProd", "SegmentSum"), 1),
    **dict.fromkeys(("SegmentMaxV2", "SegmentMinV2", "SegmentProdV2", "SegmentSumV2"), 1),
    **dict.fromkeys(("UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd"), 1),
    "UnsortedSegmentSum": 1,
    **dict.fromkeys(("SparseSegmentMean", "SparseSegmentSqrtN", "SparseSegmentSum"), 2),
}
"""Operations that combine rows of the same number, and the index of their input of numbers."""
_PLACES = {"RaggedTensorToSparse", "Range", "Where"}
"""Operations that make the numbers of rows, in the order of the examples."""


def are_chosen(tensor: Tensor, origins: Origins, *, by_value: bool = True) -> bool:
    """Returns whether a tensor has other rows than all examples have: selected or added ones.

    Rows are selected by `tf.boolean_mask`, `tf.math.top_k` or a slice, for example. The mean
    over selected rows is not a mean over the examples. The slice by which kfit itself takes the
    replica's examples out of the batch selects nothing. What layers select counts only if it
    comes after their products.

    Args:
        tensor: The tensor.
        origins: The record of which tensors kfit has marked.
        by_value: Whether a selection counts that decides on each example by itself, as a mask
            does, and whether added rows of zeros count. The sum over such rows is a sum over
            the examples.
    """
    if by_value and _has_values_of_ragged(tensor, origins):
        return True
    if _are_grouped(tensor, origins):
        return True
    if added_rows(tensor, origins) > (Added.NOTHING if by_value else Added.ZEROS):
        return True
    near = {id(each) for each in made_from(tensor, origins, stop=LAYERS | _OF_EACH_RAGGED_ROW)}
    return any(
        (chooses_by_place(each.op, origins) or (by_value and each.op.type in _CHOICES_BY_VALUE))
        and not origins.are_splits(each.op.inputs[0])
        and (id(each) in near or is_of_step(each.op))
        for each in made_from(tensor, origins, stop=CALLS | _OF_EACH_RAGGED_ROW)
    )


def _are_grouped(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether rows are made of groups of rows, by numbers that are part of the data.

    So it is with the nodes of a batch of graphs, each with the number of its graph. Numbers that
    follow from the place of an example in the batch group the values of that example only.
    """
    return any(
        each.op.type in _GROUPING
        and any(used_by(of, origins) for of in each.op.inputs)  # and not of constants alone
        and not _are_of_places(each.op.inputs[_GROUPING[each.op.type]], origins)
        for each in made_from(tensor, origins, stop=CALLS)
    )


def _are_of_places(numbers: Tensor, origins: Origins) -> bool:
    """Returns whether the numbers of rows follow from the places of the examples in the batch."""
    found = made_from(numbers, origins, stop=CALLS)
    return any(each.op.type in _PLACES for each in found) or any(
        origins.are_indices(of) for each in found for of in each.op.inputs
    )


def _has_values_of_ragged(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor has a row for each value of ragged or sparse examples.

    Their number differs from that of the examples. An operation that adds up or lays out the values
    of each example makes rows of examples of them.
    """
    found = made_from(tensor, origins, stop=_OF_EACH_RAGGED_ROW)
    followed = [each.op for each in found if each.op.type not in _OF_EACH_RAGGED_ROW]
    sources = (each for op in followed for each in op.inputs)
    return any(origins.are_values(each) for each in (tensor, *sources))


def chooses_by_place(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether an operation selects examples by their place or rank in the batch.

    Args:
        op: An operation of the replica's step.
        origins: The record of which tensors kfit has marked.
    """
    if op.type in _CHOICES_BY_PLACE:
        axis, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
        return rank is None or axis == rank - 1 or op.type != "TopKV2"
    if op.type == "NonMaxSuppressionV5":
        return True
    if op.type in ("Split", "SplitV"):
        return _splits_rows(op) and not splits_into_batches(op, origins)
    return op.type == "StridedSlice" and cuts_rows(op) and not takes_batches(op, origins)


def is_chosen_by_place(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor has rows that were selected by their place in the batch.

    Args:
        tensor: A tensor of the replica's step.
        origins: The record of which tensors kfit has marked.
    """
    stop = LAYERS | CALLS | _REDUCTIONS | {"ConcatV2"}
    return any(chooses_by_place(each.op, origins) for each in made_from(tensor, origins, stop=stop))


def may_choose(op: tf.Operation) -> bool:
    """Returns whether an operation inside of a loop or a branch may choose among the examples."""
    if op.type in CALLS | _CHOICES_BY_VALUE | _CHOICES_BY_PLACE | {"Split", "SplitV"}:
        return any(rows_axis(each) is not None for each in op.inputs)
    if op.type == "TensorListGetItem":
        return rows_axis(op.inputs[0]) == 0
    if op.type == "StridedSlice":
        return cuts_rows(op)
    if op.type == "GatherV2":
        return gathers_rows(op)
    return op.type in {"ConcatV2", "Pad", "PadV2"} and rows_axis(op.outputs[0]) is not None


def cuts_rows(op: tf.Operation) -> bool:
    """Returns whether a slice may leave out some of the examples."""
    axis, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
    if axis is None or rank is None:
        return axis is not None
    index = next(index for index, of in parts_of_slice(op, rank) if of == axis)
    if index is None:
        return False
    steps = tf.get_static_value(op.inputs[3])
    if steps is None or abs(steps[index]) != 1:
        return True
    return not (op.get_attr("begin_mask") & op.get_attr("end_mask")) >> index & 1


def _splits_rows(op: tf.Operation) -> bool:
    """Returns whether an operation, a Split or SplitV, splits along the axis of the examples."""
    tensor, axis = (op.inputs[1], op.inputs[0]) if op.type == "Split" else op.inputs[::2]
    at, rows, rank = tf.get_static_value(axis), rows_axis(tensor), tensor.shape.rank
    return rows is not None and (at is None or rank is None or int(at) % rank == rows)
