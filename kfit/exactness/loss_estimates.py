"""Wrappers that make the reduced loss of each replica an estimate of the global batch's.

Each function here wraps a function of Keras (`kfit.exactness.patches` lists them) and calls it
unchanged unless this thread is tracing a replica's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.exactness.collectives import all_reduce_sum
from kfit.exactness.replica_context import CannotMeetError, Replica, current_replica, one_of_several
from kfit.exactness.rows import is_scalar
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals.losses import apply_mask

Tensor = Any


def unscaled(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps Keras' scaling of a loss by 1 / replicas: no scaling, since the share replaces it."""

    def scale(value: Tensor) -> Tensor:
        return original(value) if current_replica() is None else value

    return scale


def global_estimate(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps the reduction of losses: returns the replica's estimate of the global batch's loss."""

    def reduce_weighted_values(
        values: Tensor,
        sample_weight: Tensor = None,
        mask: Tensor = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Tensor:
        loss = original(values, sample_weight, mask, reduction, dtype)
        replica = one_of_several()
        if replica is None:
            return loss
        if is_scalar(values):
            return estimate_of(loss, replica, "What a loss returns")
        if reduction in (None, "none"):
            return loss  # the step decides how the examples' values are reduced
        return replica.origins.estimate(
            _of_whole_batch(loss, replica, values, sample_weight, mask, reduction)
        )

    return reduce_weighted_values


def _of_whole_batch(
    loss: Tensor,
    replica: Replica,
    values: Tensor,
    sample_weight: Tensor,
    mask: Tensor,
    reduction: str,
) -> Tensor:
    """The estimate of the global batch's loss, from the loss that Keras reduced on the replica."""
    share = replica.share_as(loss.dtype)
    if reduction == "sum":
        return tf.math.divide_no_nan(loss, share)
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
    return loss * tf.math.divide_no_nan(divisor, total * share)


def _own_divisor(
    values: Tensor, sample_weight: Tensor, mask: Tensor, reduction: str, dtype: Any
) -> Tensor | None:
    """The divisor of this replica's mean, or None if that is its number of examples.

    The cases are those of `keras.src.losses.loss.reduce_weighted_values`.
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
