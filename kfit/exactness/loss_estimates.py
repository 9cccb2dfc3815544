"""Wrappers that make the loss of each replica an estimate of the global batch's loss.

The sum of the replicas' estimates, weighted by the replicas' shares of the examples, is exactly the
global batch's loss. Each wrapper changes only what a replica's step does. Anywhere else it calls
Keras' function unchanged. `kfit.exactness.patches` lists the functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import has_one_example, has_rows_of_examples, kinds_of
from kfit.exactness.batch_warnings import FROM_ALL_REPLICAS, warn_of_rows
from kfit.exactness.collectives import all_reduce_sum
from kfit.exactness.replica_context import CannotMeetError, Replica, current_replica, one_of_several
from kfit.exactness.scalar_estimates import common_value, estimate_of
from kfit.internals.losses import apply_mask

Tensor = Any


def unscaled(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of Keras' `scale_loss_for_distribution`, or of its inverse.

    These functions of Keras divide or multiply a loss by the number of replicas. In a replica's
    step, the replacement returns the loss unchanged: kfit weights the loss by the replica's share
    of the examples instead.
    """

    def scale(value: Tensor) -> Tensor:
        return original(value) if current_replica() is None else value

    return scale


def global_estimate(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `reduce_weighted_values`, by which Keras reduces a loss to a scalar.

    In a replica's step, the replacement returns the replica's estimate of the global batch's loss.
    The sum of the replicas' estimates, weighted by the replicas' shares of the examples, is the
    global batch's loss. With the reduction None there is no scalar: the replacement then returns
    the loss of each example, as Keras does.
    """

    def reduce_weighted_values(
        values: Tensor,
        sample_weight: Tensor = None,
        mask: Tensor = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Tensor:
        loss = original(values, sample_weight, mask, reduction, dtype)
        replica = one_of_several()
        if replica is None or has_one_example(values, replica):
            return loss
        are_averaged = reduction not in (None, "none", "sum")
        if not has_rows_of_examples(values, replica):
            if sample_weight is None and (mask is None or are_averaged):
                # The mean of one value over all that a mask leaves is the value.
                values = estimate_of(values, replica, "What a loss returns")
                loss = original(values, None, None, reduction, dtype)
            elif sample_weight is not None and kinds_of(values, replica):
                _warn_of_weighted_number(replica)
                return replica.origins.estimate(loss)
            return estimate_of(loss, replica, "What a loss returns")
        if sample_weight is not None and not has_rows_of_examples(sample_weight, replica):
            sample_weight = _common_weight(sample_weight, values, replica)
            loss = original(values, sample_weight, mask, reduction, dtype)
        elif sample_weight is not None:
            warn_of_rows(sample_weight, replica, "The `sample_weight` of a loss")
        is_plain = sample_weight is None and mask is None and reduction not in (None, "none")
        warn_of_rows(
            values,
            replica,
            "What a loss returns",
            are_averaged=are_averaged,
            are_weighted=not is_plain,
        )
        if reduction in (None, "none") or replica.tries_in_vain:
            return loss  # the step decides how the examples' values are reduced
        return replica.origins.estimate(
            _of_whole_batch(loss, replica, values, sample_weight, mask, reduction)
        )

    return reduce_weighted_values


def _warn_of_weighted_number(replica: Replica) -> None:
    replica.warn(
        "What a loss returns is one number for the batch, so that `sample_weight` or "
        "`class_weight` do not weight the examples: Keras multiplies the number by the mean of the "
        "weights. Each replica does so with its own examples, so that the numbers depend on how "
        "many replicas there are. Let the loss return a value for each example, without taking "
        "their mean."
    )


def _common_weight(weight: Any, values: Tensor, replica: Replica) -> Any:
    """Returns the global batch's value of a weight that has no row for each example.

    kfit warns if no replica can compute it by itself, and returns the weight unchanged.
    """
    if not replica.can_be_read:
        return weight
    common = common_value(tf.cast(weight, values.dtype), replica)
    if common is None:
        replica.warn(
            "The `sample_weight` of a loss has no value for each example, and is computed from the "
            "examples (a mean or a sum over them, a maximum). Each replica computes it from its "
            "own examples, so that the numbers depend on how many replicas there are. Pass a "
            f"weight for each example. {FROM_ALL_REPLICAS}"
        )
    return weight if common is None else common


def _of_whole_batch(
    loss: Tensor,
    replica: Replica,
    values: Tensor,
    sample_weight: Tensor,
    mask: Tensor,
    reduction: str,
) -> Tensor:
    """Converts a replica's reduced loss to an estimate of the global batch's loss.

    A mean over the examples is an estimate as it is. A sum is divided by the replica's share of the
    examples. A mean with another divisor, such as the sum of the sample weights, needs the sum of
    all replicas' divisors. This sum is a collective, so all replicas must call the function.

    Args:
        loss: The scalar to which Keras has reduced the loss of the replica's examples.
        replica: The replica that is being traced.
        values: The loss of each example, before weights, mask and reduction were applied.
        sample_weight: The sample weights by which Keras has weighted `values`, or None.
        mask: The mask that Keras has applied to `values`, or None.
        reduction: The name of the reduction, such as "sum" or "mean_with_sample_weight".

    Raises:
        CannotMeetError: If a collective is needed where the replica must not communicate.
    """
    if reduction == "sum" or _cancels(sample_weight, replica, mask, reduction):
        return replica.divided_by_share(loss)
    divisor = _own_divisor(values, sample_weight, mask, reduction, loss.dtype)
    if divisor is None:
        return loss
    if replica.postponed is not None:
        raise CannotMeetError(
            "`jit_compile=True` on several replicas does not go with losses that are divided "
            "by more than the number of examples (masks, the reduction "
            "'mean_with_sample_weight', sequences of open length), because the replicas meet "
            "outside of XLA. Compile the model with `jit_compile=False`."
        )
    total = all_reduce_sum(divisor)
    return loss * tf.math.divide_no_nan(divisor, total * replica.share_as(loss.dtype))


def _cancels(sample_weight: Any, replica: Replica, mask: Tensor, reduction: str) -> bool:
    """Returns whether Keras divides a sum over the examples by weights that are no sum over them.

    The result is then a sum, too: one weight of all examples cancels out.
    """
    if reduction != "mean_with_sample_weight" or mask is not None or sample_weight is None:
        return False
    return not has_rows_of_examples(sample_weight, replica)


def _own_divisor(
    values: Tensor, sample_weight: Tensor, mask: Tensor, reduction: str, dtype: Any
) -> Tensor | None:
    """Returns the number by which Keras has divided the sum of a replica's losses.

    Factors of this number that are equal on all replicas are left out. The result is None if only
    the replica's number of examples is left, since the loss is then a mean over the examples. The
    arguments are those of Keras' `reduce_weighted_values`, which computes the loss.
    """
    if reduction == "mean_with_sample_weight":
        weights = apply_mask(sample_weight, mask, dtype=dtype, reduction=reduction)
        if weights is not None:
            return tf.stop_gradient(tf.reduce_sum(tf.cast(weights, dtype)))
    elif mask is not None:
        return tf.reduce_sum(tf.cast(mask, dtype))
    if values.shape[1:].is_fully_defined():
        return None
    return tf.cast(tf.size(values), dtype)
