"""Finds out from the graph whether a loss combines a replica's examples with each other.

A contrastive loss, for example, compares each example with all others. On a replica the others are
the replica's own examples only, so the loss depends on how many replicas there are. If the loss
ends with a mean, its last operation does not show this. So the operations before it are examined,
too: all of them from the loss back to the products of layers (such as matrix products and
convolutions), and before these products those that no layer has made, such as the reversal of a
batch that a `train_step` mixes with itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.replica_context import Replica
from kfit.graphs.code_of_steps import (
    is_of_batch_normalization,
    is_of_ragged_tensors,
    is_of_step,
)
from kfit.graphs.cut_rows import cuts_of
from kfit.graphs.loops import combines_inside
from kfit.graphs.moved_rows import moves_rows
from kfit.graphs.origins import Origins, inputs_of
from kfit.graphs.placed_axes import BROADCASTING, label_of, role_in_product
from kfit.graphs.row_indices import RESHAPING, are_places, are_selected, as_computed
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sources import CONTRACTIONS, LAYERS, UsesOfRows, made_from, used_by
from kfit.internals.graphs import BRANCHES, CALLS, LOOPS

Tensor = Any

_REDUCING = {"Max", "Mean", "Min", "Prod", "Sum"}
_NORMALIZING = {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"}
_LINEAR = {
    *("Add", "AddN", "AddV2", "Cast", "EnsureShape", "ExpandDims", "Identity", "Mean", "Neg"),
    *("Pack", "Reshape", "Squeeze", "StopGradient", "Sub", "Sum", "Transpose"),
}


def combines_examples(value: Any, replica: Replica, *, are_weighted: bool = False) -> bool:
    """Returns whether a loss, or a part of it, combines a replica's examples with each other.

    Three kinds of operations do: a product of the examples' vectors with each other; an operation
    on each example and a statistic of all examples, such as the difference from their mean; and an
    operation along the axis of the examples that moves or accumulates values, such as `tf.roll`. If
    there is no graph that can be read, the result is False. What `warn_of_layers` has told of does
    not count.

    Args:
        value: The loss or the part, a tensor of the replica's step.
        replica: The replica that is being traced.
        are_weighted: Whether the rows of the value will have weights. Otherwise a mean over the
            examples may be added to each of them, since their mean then is a mean as well.
    """
    if not isinstance(value, tf.Tensor) or not replica.can_be_read:
        return False
    origins = replica.origins
    of_layers = {id(each): each for each in made_from(value, origins, stop=LAYERS | CALLS)}
    even = {} if are_weighted else spread_evenly(added_up(value, replica), replica)
    are_used = UsesOfRows(origins).are_used
    return any(
        (id(tensor) in of_layers or is_of_step(tensor.op))
        and id(tensor) not in even
        and id(tensor) not in replica.told
        and combines(tensor, origins, are_used)
        for tensor in made_from(value, origins, stop=CALLS)
    )


def combines(tensor: Tensor, origins: Origins, are_used: Callable[[Tensor], bool]) -> bool:
    """Returns whether the operation that makes a tensor combines examples with each other.

    Only this one operation is judged, and not the operations that make its inputs. What Keras'
    BatchNormalization computes does not count, wherever the layer is called: it is documented to
    normalize by the statistics of the batch, and `synchronized=True` takes those of all replicas.
    Nor do the numbers by which a `tf.RaggedTensor` knows where its rows begin, which are sums of
    the lengths of the rows before.

    Args:
        tensor: A tensor of the replica's step, or of a loop or a branch in it.
        origins: The record of which tensors kfit has marked, such as the examples.
        are_used: A function that returns whether a tensor is computed from examples' values.
    """
    if not _puts_across(tensor, origins, are_used) or is_of_batch_normalization(tensor.op):
        return False
    return not (tensor.dtype.is_integer and is_of_ragged_tensors(tensor.op))


def _puts_across(tensor: Tensor, origins: Origins, are_used: Callable[[Tensor], bool]) -> bool:
    op = tensor.op
    if op.type in LOOPS | BRANCHES | CALLS:
        return combines_inside(
            op, are_used, lambda each, are_used: combines(each, origins, are_used)
        )
    if op.type == "IdentityN":
        return False
    if moves_rows(op, origins):
        moved = (tensor.dtype, tf.variant)
        return any(are_used(each) for each in op.inputs if each.dtype in moved)
    if op.type.startswith("TensorList") or op.type in RESHAPING:
        return False
    if op.type in CONTRACTIONS:
        return _multiplies_examples(op, are_used)
    if op.type in _NORMALIZING:
        return bool(op.get_attr("is_training")) and are_used(op.inputs[0])
    if _numbers_rows(tensor, origins):
        return True
    axis = rows_axis(tensor)
    if axis is None or op.type in _REDUCING:
        return False
    # Integers may be indices, which need no row of their own for each row of the result.
    inputs = [each for each in op.inputs if each.dtype.is_floating or op.type in BROADCASTING]
    rows = [each for each in inputs if _has_rows_at(each, axis, op)]
    if any(are_used(each) for each in inputs if not any(each is of for of in rows)):
        return True
    # In `x - x[:1]` one example is broadcast to all rows. Integers may be the ends of ragged rows.
    values = (each for each in rows if each.dtype.is_floating and are_used(each))
    return len({cuts_of(each, origins) for each in values}) > 1


def spread_evenly(added: dict[int, Tensor], replica: Replica) -> dict[int, Tensor]:
    """Returns the tensors in which a mean over the examples is added to the value of each of them.

    Examples are `tf.ones_like(values) * mean` and `values - mean`. If nothing but sums and means of
    such tensors is computed, they are those of one device.

    Args:
        added: What `added_up` returned: the tensors of which nothing else is computed.
        replica: The replica that is being traced.
    """
    return {key: each for key, each in added.items() if _spread(each, replica) is not None}


def added_up(value: Tensor, replica: Replica) -> dict[int, Tensor]:
    """Returns the tensors of which a value is computed by sums, means and equal factors only.

    Args:
        value: The tensor that is computed from them.
        replica: The replica that is being traced.
    """
    origins = replica.origins
    found: dict[int, Tensor] = {}
    others: dict[int, Tensor] = {}
    waiting = [(value, True)]
    while waiting:
        tensor, is_linear = waiting.pop()
        is_marked = origins.known_kind(tensor) is not None
        if is_marked or not origins.is_of_step(tensor) or id(tensor) in others:
            continue
        if is_linear and id(tensor) in found:
            continue
        (found if is_linear else others)[id(tensor)] = tensor
        spread = _spread(tensor, replica) if is_linear else None
        waiting += [
            (each, is_linear and (each is spread or _adds(tensor.op, each, replica)))
            for each in inputs_of(tensor)
        ]
    return {key: each for key, each in found.items() if key not in others}


def _spread(tensor: Tensor, replica: Replica) -> Tensor | None:
    """Returns the mean over the examples that the last operation adds to each of them, or None."""
    op = tensor.op
    if op.type in ("Fill", "BroadcastTo", "Tile"):
        mean, rows = op.inputs[1 if op.type == "Fill" else 0], None
    elif op.type in ("Add", "AddV2", "Sub", "Mul"):
        without = [each for each in op.inputs if rows_axis(each) is None]
        mean = without[0] if len(without) == 1 else None
        rows = next((each for each in op.inputs if each is not mean), None)
    else:
        return None
    if mean is None or rows_axis(tensor) is None or rows_axis(mean) is not None:
        return None
    if op.type == "Mul" and (rows is None or not _is_filled(rows, replica)):
        return None
    return mean if kinds_of(mean, replica) == {"mean"} else None


def _is_filled(rows: Tensor, replica: Replica) -> bool:
    """Returns whether all rows of a tensor are equal, and equal on all replicas."""
    op = rows.op
    if op.type in ("OnesLike", "ZerosLike"):
        return True
    if op.type in ("Fill", "BroadcastTo"):
        return not replica.origins.is_own(op.inputs[1 if op.type == "Fill" else 0])
    if op.type == "Mul":
        return all(
            _is_filled(each, replica)
            if rows_axis(each) is not None
            else not replica.origins.is_own(each)
            for each in op.inputs
        )
    return op.type in ("Identity", "Cast", "Reshape", "ExpandDims", "Squeeze") and _is_filled(
        op.inputs[0], replica
    )


def _adds(op: tf.Operation, tensor: Tensor, replica: Replica) -> bool:
    """Returns whether an operation is linear in an input, with a factor of all replicas."""
    if op.type in _LINEAR:
        return True
    if op.type in ("Mul", "RealDiv", "DivNoNan"):
        one, other = op.inputs
        if op.type == "Mul":
            factor = other if one is tensor else one
            return factor is not tensor and not replica.origins.is_own(factor)
        return one is tensor and other is not tensor and kinds_of(other, replica) <= {"count"}
    return False


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
    if op.type not in BROADCASTING or rank is None or of_result is None:
        return True
    return place + of_result - rank == axis


def _numbers_rows(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor is computed from the place of each example in the batch.

    The places in a replica's part of the batch are not those in the batch. They count if they are
    numbers to compute with, decide which examples' values are taken, select from a table, or which
    random numbers of a given seed an example gets. They do not count as indices that select an
    example's own value.
    """
    op = tensor.op
    if not tensor.dtype.is_floating:
        return False
    if op.type == "StridedSlice" and rows_axis(op.inputs[0]) is None:
        bounds = [used_by(each, origins) for each in op.inputs[1:3]]  # such as of `table[:n]`
        return rows_axis(tensor) is not None and any(each == {"count"} for each in bounds)
    if op.type.startswith("StatelessRandom") and rows_axis(tensor) is not None:
        # Of one seed, the first examples of all replicas get the same numbers.
        return not any(origins.is_own(each) for each in op.inputs[1:])
    if op.type in ("Select", "SelectV2"):
        return are_places(op.inputs[0], origins)
    if op.type in ("GatherV2", "ResourceGather"):
        indices = op.inputs[1]
        if are_selected(indices):
            return are_places(as_computed(indices).op.inputs[0], origins)
        is_table = op.type == "ResourceGather" or rows_axis(op.inputs[0]) is None
        return is_table and are_places(indices, origins)
    if op.type == "OneHot" and used_by(op.inputs[1], origins) == {"count"}:
        if rows_axis(tensor) is None:
            return False  # otherwise such as `tf.one_hot(0, n)`, or that of the largest example
        return rows_axis(op.inputs[0]) is None or used_by(tensor, origins) == {"count"}
    if op.type == "ScatterNd" and used_by(op.inputs[2], origins) == {"count"}:
        return rows_axis(tensor) == 0 and rows_axis(op.inputs[0]) is None
    return op.type in ("Cast", "OneHot", "Range") and are_places(tensor, origins)


def _sums_over(op: tf.Operation, index: int, axis: int) -> bool:
    """Returns whether a product sums over an axis of one of its factors."""
    if op.type != "Einsum":
        return role_in_product(op, index, axis) == "summed"
    result = op.get_attr("equation").decode().partition("->")[2]
    label = label_of(op, index, axis)
    return label != "..." and label not in result


def _multiplies_examples(op: tf.Operation, are_used: Callable[[Tensor], bool]) -> bool:
    """Returns whether a product, such as a matrix product, combines examples with each other.

    It does if both factors are computed from examples, and the product has an element for each pair
    of examples; or if it sums over the examples, and has a row for each. It does not if it only
    sums over the examples, such as the product of a matrix with its transpose, nor if it is a batch
    of products, one for each example.

    Args:
        op: The operation, one of `CONTRACTIONS` (matrix products and Einsum).
        are_used: A function that returns whether a tensor is computed from examples' values.
    """
    of_inputs = [rows_axis(each) for each in op.inputs]
    if rows_axis(op.outputs[0]) is not None and any(
        axis is not None and are_used(op.inputs[index]) and _sums_over(op, index, axis)
        for index, axis in enumerate(of_inputs)
    ):
        return True  # such as the product with a matrix of a row and a column for each example
    if not all(map(are_used, op.inputs)):
        return False
    axes = [axis for axis in of_inputs if axis is not None]
    if len(axes) < len(of_inputs):  # a statistic of all examples, such as their covariance
        return rows_axis(op.outputs[0]) is not None
    if op.type == "Einsum":
        return len({label_of(op, index, axis) for index, axis in enumerate(axes)}) > 1
    return {role_in_product(op, index, axis) for index, axis in enumerate(axes)} not in (
        {"batch"},
        {"summed"},
    )
