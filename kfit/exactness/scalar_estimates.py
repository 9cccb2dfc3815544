"""Converts values of user code to estimates, so that the replicas' values add up to the batch's.

A value that describes a batch, such as a loss, must be the replica's estimate of the global
batch's value. The estimate is then weighted by the replica's share (its fraction of the examples).
A mean over the examples is an estimate as it is. A sum over the examples becomes an estimate when
it is divided by the share. For any other value no estimate is known, and kfit warns of it by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kfit.distribute.contexts import replicas_meet_here
from kfit.exactness.batch_kinds import (
    Addend,
    addends_of,
    has_one_example,
    has_rows_of_examples,
)
from kfit.exactness.batch_warnings import warn_if_combined, warn_of
from kfit.exactness.changed_gradients import report_use
from kfit.exactness.collectives import is_first_with_examples
from kfit.exactness.replica_context import Replica, current_replica
from kfit.graphs.kinds import COUNT, INVERSE, NONE

Tensor = Any

ADD_UP: frozenset[str] = frozenset({"sum", "rows", "count"})
"""Kinds of values that add up over the replicas."""


def estimate_of(value: Any, replica: Replica, what: str) -> Any:
    """Converts a replica's value, such as a loss, to its estimate of the global batch's value.

    The sum of the replicas' estimates, weighted by the replicas' shares of the examples, is the
    global batch's value. The value may be a mean over the examples, a sum over them, their number,
    a value that is equal on all replicas, or a sum of such terms. If the graph shows anything else,
    kfit warns and returns the value unchanged. If there is no graph that shows what it is, it is
    taken for a mean.

    Args:
        value: A floating-point tensor without a row for each example, such as a scalar or a sum
            along the axis of the examples; anything else is returned unchanged.
        replica: The replica that is being traced.
        what: What to call the value in a warning, beginning with a capital letter.
    """
    if not _describes_batch(value, replica):
        return value
    warn_if_combined(value, replica, what)
    if _is_stack(value, replica):
        parts = [estimate_of(each, replica, what) for each in _stacked(value)]
        return replica.origins.estimate(tf.stack(parts))
    addends = addends_of(value, replica)
    if not replica.can_be_read:
        return value
    if all(each.kinds == {"mean"} for each in addends):
        return replica.origins.estimate(value)
    if not are_known(addends):
        report_use([value], replica)
        warn_of(what, replica)
        return replica.origins.estimate(value)  # so that kfit warns only once
    total = sum(each.times(weight_of(each, replica)) for each in addends)
    return replica.origins.estimate(total)


def common_value(value: Any, replica: Replica) -> Any:
    """Returns the global batch's value of what each replica can compute without the others.

    That is a value that is equal on all replicas, the number of examples, a constant divided by
    it, or a sum of such terms.

    Args:
        value: A number, or a floating-point tensor without a row for each example.
        replica: The replica that is being traced.

    Returns:
        The value; None if it is computed from the examples in any other way, or if there is no
        graph that shows what it is.
    """
    if not isinstance(value, tf.Tensor):
        return value
    addends = addends_of(value, replica)
    if not all(each.kinds in (NONE, COUNT, INVERSE) for each in addends):
        return None
    if not any(each.kinds for each in addends):
        return value
    one, share = tf.ones((), value.dtype), replica.share_as(value.dtype)
    number = {NONE: one, COUNT: replica.divided_by_share(one), INVERSE: share}
    return replica.origins.agreed(sum(each.times(number[each.kinds]) for each in addends))


def are_known(addends: Sequence[Addend]) -> bool:
    """Returns whether the global batch's value can be computed from the replicas' terms.

    It can if each term is a mean or a sum over the examples, their number or its inverse, or equal
    on all replicas. It cannot if any term is a mixture of these kinds, or anything else, such as a
    maximum, or if the graph does not show what it is.
    """
    known = ADD_UP | {"mean", "inverse"}
    return all(len(each.kinds) <= 1 and each.kinds <= known for each in addends)


def weight_of(addend: Addend, replica: Replica) -> Any:
    """Returns the factor that makes a term an estimate of the global batch's term.

    It is 1 for a mean over the examples, and 1 / share for a sum, where the share is the replica's
    fraction of the examples. A constant divided by the number of examples counts on one replica.
    """
    if addend.kinds == INVERSE:
        return tf.cast(is_first_with_examples(replica), addend.tensor.dtype)
    if not addend.kinds & ADD_UP:
        return 1.0
    return replica.divided_by_share(tf.ones((), addend.tensor.dtype))


def of_replica_batch(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `tf.nn.compute_average_loss`, for steps on several replicas.

    If `global_batch_size` is None, the replacement divides the sum of the losses by the number of
    losses that it was given. TensorFlow would divide by this number times the number of replicas.
    In the cross-replica context, where kfit builds the model, TensorFlow would even raise an error.
    If `global_batch_size` is given, TensorFlow's function is called unchanged.
    """

    def compute_average_loss(
        per_example_loss: Tensor, sample_weight: Tensor = None, global_batch_size: Tensor = None
    ) -> Tensor:
        is_ours = current_replica() is not None or replicas_meet_here()
        if is_ours and global_batch_size is None:
            global_batch_size = tf.shape(per_example_loss)[0]
        return original(per_example_loss, sample_weight, global_batch_size)

    return compute_average_loss


def unscaled_sum(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `tf.nn.scale_regularization_loss`, for steps on several replicas.

    TensorFlow divides by the number of replicas. The replacement does not, since kfit weights the
    whole loss by the replica's share of the examples. In the cross-replica context, where kfit
    builds the model, TensorFlow would even raise an error.
    """

    def scale_regularization_loss(regularization_loss: Tensor) -> Tensor:
        if current_replica() is None and not replicas_meet_here():
            return original(regularization_loss)
        return tf.reduce_sum(regularization_loss)

    return scale_regularization_loss


def _describes_batch(value: Any, replica: Replica) -> bool:
    """Returns whether a value is of the whole batch, and has no row for each example."""
    if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
        return False
    return not (has_rows_of_examples(value, replica) or has_one_example(value, replica))


def _is_stack(value: Tensor, replica: Replica) -> bool:
    """Returns whether a vector was put together of scalars, each of its own kind."""
    if tf.executing_eagerly() or not replica.origins.is_of_step(value):
        return False
    is_known = replica.origins.known_kind(value) is not None
    return value.shape.rank == 1 and _uncast(value).op.type == "Pack" and not is_known


def _stacked(value: Tensor) -> list[Tensor]:
    """Returns the scalars that a vector was put together of, in the dtype of the vector."""
    return [tf.cast(each, value.dtype) for each in _uncast(value).op.inputs]


def _uncast(value: Tensor) -> Tensor:
    """Returns what a value was cast from to its dtype; any other value as it is."""
    return value.op.inputs[0] if value.op.type == "Cast" else value
