"""Finds out from the graph whether a loss combines a replica's examples with each other.

A contrastive loss, for example, compares each example with all others. On a replica the others are
the replica's own examples only, so the loss depends on how many replicas there are. If the loss
ends with a mean, its last operation does not show this. So the operations before it are examined,
too, from the loss back to the products of layers (such as matrix products and convolutions). What
comes before these products is not examined: it belongs to the layers, and not to the loss.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import CALLS, CONTRACTIONS, LAYERS, has_rows, made_from, used_by
from kfit.exactness.origins import Origins
from kfit.exactness.replica_context import Replica

Tensor = Any

_RESHAPING = {"ExpandDims", "Pack", "Reshape", "Squeeze", "Transpose", "Unpack"}
_REDUCING = {"Max", "Mean", "Min", "Prod", "Sum"}
_MOVING = {
    "Cumprod": 1,
    "Cumsum": 1,
    "GatherV2": 2,
    "RandomShuffle": None,
    "ReverseV2": 1,
    "Roll": 2,
}
"""Operations that put rows to the places of others, and the index of their input `axis`."""


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
    found = made_from(value, origins, stop=LAYERS | CALLS)
    return any(_combines(tensor, origins) for tensor in found)


def _combines(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether the operation that makes a tensor combines examples with each other.

    Only this one operation is judged, and not the operations that make its inputs.

    Args:
        tensor: A tensor of the replica's step.
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    op = tensor.op
    if not has_rows(tensor) or op.type in _RESHAPING:
        return False
    if op.type in CONTRACTIONS:
        return _multiplies_examples(op, origins)
    if op.type in _MOVING:
        return _moves_rows(op) and "rows" in used_by(op.inputs[0], origins)
    if op.type in _REDUCING or op.type in CALLS:
        return False
    without_rows = (each for each in op.inputs if each.dtype.is_floating and not has_rows(each))
    return any("rows" in used_by(each, origins) for each in without_rows)


def _multiplies_examples(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether a product, such as a matrix product, combines examples with each other.

    It does if both factors are computed from examples, and the product has an element for each pair
    of examples, or sums over the examples. It does not if the first axis of both factors and of the
    result is that of the examples: this is a batch of products, one for each example.

    Args:
        op: The operation, one of `CONTRACTIONS` (matrix products and Einsum).
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    if not all("rows" in used_by(each, origins) for each in op.inputs):
        return False
    if op.type == "Einsum":
        *given, made = _labels(op)
        return any(label != made for label in given)
    return any(each.shape.rank is not None and each.shape.rank < 3 for each in op.inputs)


def _labels(op: tf.Operation) -> list[str]:
    """Returns the letter of the first axis of each input of an Einsum, and then of its result.

    For example, the letters are "a", "c" and "a" for the equation "ab,cb->ac".
    """
    inputs, _, output = op.get_attr("equation").decode().partition("->")
    return [part[:1] for part in (*inputs.split(","), output)]


def _moves_rows(op: tf.Operation) -> bool:
    """Returns whether an operation moves or accumulates values along the axis of the examples.

    After such an operation, such as `tf.roll`, the row of an example contains values of another one
    or of several. If the axis is not static, the result is True. Selecting rows by a mask does not
    count, since the rows keep their order.

    Args:
        op: An operation of one of the types in `_MOVING`, such as Roll, GatherV2 or Cumsum.
    """
    axis = _MOVING[op.type]
    if axis is None:
        return True
    if op.type == "GatherV2" and (op.get_attr("batch_dims") or not has_rows(op.inputs[0])):
        return False
    if op.type == "GatherV2" and _are_selected(op.inputs[1]):
        return False  # by a mask, in their order
    axes, rank = tf.get_static_value(op.inputs[axis]), op.inputs[0].shape.rank
    return axes is None or rank is None or 0 in axes.reshape(-1) % rank


def _are_selected(indices: Tensor) -> bool:
    """Returns whether indices are those at which a mask is true, as in `tf.boolean_mask`."""
    while indices.op.type in _RESHAPING | {"Cast", "Identity"}:
        indices = indices.op.inputs[0]
    return indices.op.type == "Where"
