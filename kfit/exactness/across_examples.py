"""Finds out from the graph whether a loss combines a replica's examples with each other.

A contrastive loss, for example, compares each example with all others. On a replica these are the
replica's own examples only, so the loss depends on how many replicas there are. A mean over such
values looks like a mean over the examples; the operations behind it tell the difference. They are
read from the loss back to the product with a layer's weights: what layers do is not judged.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import CALLS, CONTRACTIONS, LAYERS, has_rows, reads_examples
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
    return any(_combines(tensor, replica) for tensor in _made_from(value, replica, stop=LAYERS))


def _made_from(value: Tensor, replica: Replica, *, stop: set[str]) -> list[Tensor]:
    """Returns a tensor, and the tensors of the step's graph that it is computed from.

    Tensors that kfit has marked, such as the replica's examples and sums over all replicas, are not
    among them, nor what these are computed from.

    Args:
        value: The tensor.
        replica: The replica that is being traced.
        stop: Operations of which the inputs are not followed.
    """
    found: dict[int, Tensor] = {}
    waiting = [value]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in found or not _is_to_read(tensor, replica):
            continue
        found[id(tensor)] = tensor
        if tensor.op.type not in stop | CALLS:
            waiting += tensor.op.inputs
    return list(found.values())


def _is_to_read(tensor: Tensor, replica: Replica) -> bool:
    origins = replica.origins
    return origins.known_kind(tensor) is None and origins.is_of_step(tensor)


def _combines(tensor: Tensor, replica: Replica) -> bool:
    """Returns whether the operation that makes a tensor combines examples with each other."""
    op = tensor.op
    if not has_rows(tensor) or op.type in _RESHAPING:
        return False
    if op.type in CONTRACTIONS:
        return _multiplies_examples(op, replica)
    if op.type in _MOVING:
        return _moves_rows(op) and reads_examples(op.inputs[0], replica)
    if op.type in _REDUCING or op.type in CALLS:
        return False
    without_rows = (each for each in op.inputs if each.dtype.is_floating and not has_rows(each))
    return any(reads_examples(each, replica) for each in without_rows)


def _multiplies_examples(op: tf.Operation, replica: Replica) -> bool:
    """Returns whether a product has an element for each pair of examples, or sums over examples.

    If both factors have the examples as the axis of a batch of products, each example has a product
    of its own.
    """
    if not all(reads_examples(each, replica) for each in op.inputs):
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
