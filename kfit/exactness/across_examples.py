"""Finds out from the graph whether a loss combines a replica's examples with each other.

A contrastive loss, for example, compares each example with all others. On a replica these are the
replica's own examples only, so the loss depends on how many replicas there are. A mean over such
values looks like a mean over the examples; the operations behind it tell the difference. They are
read from the loss back to the product with a layer's weights: what layers do is not judged.
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
    """Returns whether a value of a loss, or of a part of it, is computed from pairs of examples.

    So are a product of the examples' vectors with each other, a difference between each example and
    a mean over the examples, and values that were rolled or shuffled along the axis of the
    examples. If there is no graph that can be read, the result is False.

    Args:
        value: A tensor of the replica's step.
        replica: The replica that is being traced.
    """
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or not replica.hides_rows:
        return False
    origins = replica.origins
    found = made_from(value, origins, stop=LAYERS | CALLS)
    return any(_combines(tensor, origins) for tensor in found)


def _combines(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether the operation that makes a tensor combines examples with each other."""
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
    """Returns whether a product has an element for each pair of examples, or sums over examples.

    If both factors have the examples as the axis of a batch of products, each example has a product
    of its own.
    """
    if not all("rows" in used_by(each, origins) for each in op.inputs):
        return False
    if op.type == "Einsum":
        *given, made = _labels(op)
        return any(label != made for label in given)
    return any(each.shape.rank is not None and each.shape.rank < 3 for each in op.inputs)


def _labels(op: tf.Operation) -> list[str]:
    """Returns the letters of the first axes in an equation of Einsum: the inputs', the result's.

    For example, they are "a", "c" and "a" in "ab,cb->ac".
    """
    inputs, _, output = op.get_attr("equation").decode().partition("->")
    return [part[:1] for part in (*inputs.split(","), output)]


def _moves_rows(op: tf.Operation) -> bool:
    """Returns whether an operation of `_MOVING` moves along the axis of the examples."""
    axis = _MOVING[op.type]
    if axis is None:
        return True
    if op.type == "GatherV2" and (op.get_attr("batch_dims") or not has_rows(op.inputs[0])):
        return False
    if op.type == "GatherV2" and _are_selected(op.inputs[1]):
        return False  # by a mask, in their order
    axes = tf.get_static_value(op.inputs[axis])
    return axes is None or 0 in axes.reshape(-1)


def _are_selected(indices: Tensor) -> bool:
    """Returns whether indices are those at which a mask is true, as in `tf.boolean_mask`."""
    while indices.op.type in _RESHAPING | {"Cast", "Identity"}:
        indices = indices.op.inputs[0]
    return indices.op.type == "Where"
