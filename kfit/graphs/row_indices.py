"""Finds out from the graph of which examples the indices of rows are.

Indices that are 0, 1, 2 and so on leave each row where it is, and `(tf.range(n) + 1) % n` puts each
row to the place of the next one.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.graphs.origins import Origins
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sources import LAYERS, made_from, used_by
from kfit.internals.graphs import CALLS

Tensor = Any

RESHAPING = {"ExpandDims", "Pack", "Reshape", "Squeeze", "Transpose", "Unpack"}
_SHIFTS = {"Add", "AddV2", "FloorMod", "Maximum", "Minimum", "Mod", "Sub"}
_MODULO = {"FloorMod", "Mod"}
_UNIQUE = {"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}


def are_places(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor has a row for each example, computed from its place alone."""
    if rows_axis(tensor) is None or used_by(tensor, origins) != {"count"}:
        return False
    return any(
        each.op.type == "Range" and rows_axis(each) is not None
        for each in made_from(tensor, origins, stop=CALLS | LAYERS)
    )


def are_all_places(indices: Tensor) -> bool:
    """Returns whether indices are 0, 1, 2 and so on, up to the number of examples.

    Each may stand there several times, as in `tf.repeat(tf.range(n), k)` for `k` parts of each
    example. TensorFlow may write them with a case for negative ones, and one for a batch of one
    example.
    """
    indices = as_computed(indices)
    if indices.op.type in ("BroadcastTo", "Tile") and _repeats_each(indices.op):
        return are_all_places(indices.op.inputs[0])
    if indices.op.type == "SelectV2":
        condition, *cases = indices.op.inputs
        of = (condition.op.type, tf.get_static_value(condition.op.inputs[-1]))
        if of not in (("Less", 0), ("Greater", 1)):
            return False
        return are_all_places(cases[1 if of[0] == "Less" else 0])
    if indices.op.type != "Range":
        return False
    start, limit, delta = indices.op.inputs
    are_steps = (tf.get_static_value(start), tf.get_static_value(delta)) == (0, 1)
    return are_steps and _is_number(limit)


def _repeats_each(op: tf.Operation) -> bool:
    """Returns whether a Tile or a BroadcastTo repeats each row, and not the batch."""
    rows, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
    if rows is None or rank is None or rank != op.outputs[0].shape.rank:
        return False
    if op.type == "BroadcastTo":
        return True
    times = tf.get_static_value(op.inputs[1], partial=True)
    return times is not None and all(each == 1 for each in times[: rows + 1])


def undo_unique(values: Tensor, indices: Tensor, origins: Origins) -> bool:
    """Returns whether rows of unique values are taken by the indices that `tf.unique` returns.

    Each value then gets what was computed of its unique value, as in a lookup of embeddings. How
    often there is a value, as `tf.unique_with_counts` returns it, depends on all examples.
    """
    indices = as_computed(indices)
    if indices.op.type not in _UNIQUE or indices.value_index != 1:
        return False
    return not any(
        each.op.type in _UNIQUE and each.value_index == 2
        for each in made_from(values, origins, stop=CALLS)
    )


def _is_number(tensor: Tensor) -> bool:
    """Returns whether a tensor is the size of an axis, or the largest of such sizes."""
    tensor = as_computed(tensor)
    if tensor.op.type == "Max" and tensor.op.inputs[0].op.type == "Pack":
        return all(map(_is_number, tensor.op.inputs[0].op.inputs))
    return tensor.op.type == "StridedSlice" and tensor.op.inputs[0].op.type == "Shape"


def as_computed(tensor: Tensor) -> Tensor:
    """Returns what a tensor is before it was cast or got another shape; of several, the first."""
    while tensor.op.type in RESHAPING | {"Cast", "Identity"} or _adds_axes(tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor


def _adds_axes(op: tf.Operation) -> bool:
    """Returns whether an operation is a slice such as `x[:, None]`."""
    return op.type == "StridedSlice" and bool(op.get_attr("new_axis_mask"))


def are_selected(indices: Tensor) -> bool:
    """Returns whether indices are those at which a mask is true, as in `tf.boolean_mask`."""
    return bool(as_computed(indices).op.type == "Where")


def shift_places(indices: Tensor, origins: Origins) -> bool:
    """Returns whether indices are other places of the batch, computed from each one's own place.

    An example is `(tf.range(n) + 1) % n`. Where all values of the examples are in one axis, the
    place of an example is multiplied by the number of its values: `tf.range(n) * k + index`.

    Args:
        indices: The indices; those of the first axis are the first in each row.
        origins: The record of which tensors kfit has marked.
    """
    if used_by(indices, origins) != {"count"}:
        return False
    first = as_computed(indices)
    return (
        first.op.type in _SHIFTS and not are_offsets(first, origins) and _has_places(first, origins)
    )


def are_offsets(indices: Tensor, origins: Origins) -> bool:
    """Returns whether indices count from where the values of each example begin, in one axis."""
    return not _are_modulo(indices, origins) and any(
        each.op.type == "Mul"
        and any(rows_axis(of) is not None and _has_places(of, origins) for of in each.op.inputs)
        for each in made_from(indices, origins, stop=CALLS)
    )


def are_beside_places(indices: Tensor, origins: Origins) -> bool:
    """Returns whether numbers that are computed from examples are added to the examples' places."""
    return _has_places(indices, origins) and not _are_modulo(indices, origins)


def _has_places(indices: Tensor, origins: Origins) -> bool:
    found = made_from(indices, origins, stop=CALLS)
    return any(each.op.type == "Range" and rows_axis(each) is not None for each in found)


def _are_modulo(indices: Tensor, origins: Origins) -> bool:
    return any(each.op.type in _MODULO for each in made_from(indices, origins, stop=CALLS))
