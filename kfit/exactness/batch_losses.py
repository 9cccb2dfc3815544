"""Losses of Keras that are not a mean or sum of a value for each example.

Dice and Tversky divide sums over all examples of the batch, so a replica cannot estimate them from
its own examples. Here these sums are taken over all replicas before the division. They are a few
numbers, where the predictions may be large images. Circle compares every example of a batch with
every other one, and is computed from the examples of all replicas (`kfit.exactness.whole_batch`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kfit.exactness.collectives import all_reduce_sum
from kfit.exactness.replica_context import CannotMeetError, Replica, current_replica
from kfit.internals.losses import options_of, squeeze_or_expand_to_same_rank

Tensor = Any

COMPARES = (
    "compares the examples of a batch with each other. Each replica compares only its own ones, so "
    "that the result depends on the number of replicas."
)
"""The warning of a loss or a metric, after its name."""

OVER_BATCHES = (keras.losses.circle, keras.losses.dice, keras.losses.tversky)
"""The functions of Keras that have one value for all examples, or compare them, without an axis."""


def over_all_replicas(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `call` of Keras' losses, for steps on several replicas.

    The replacement computes Dice and Tversky over the global batch, unless their `axis` leaves out
    the axis of the examples. For any other loss it calls the original. It warns if the loss is
    Circle, or has an `axis` that contains the axis of the examples.
    """

    def call(self: Any, y_true: Tensor, y_pred: Tensor) -> Tensor:
        replica = current_replica()
        if replica is None:
            return original(self, y_true, y_pred)
        sums = {keras.losses.dice: _dice, keras.losses.tversky: _tversky}.get(self.fn)
        options = options_of(self)
        axis = options.pop("axis", None)
        is_along_batch = axis is not None and 0 in axes_of(axis, len(y_pred.shape))
        if sums is None or replica.has_all or not (axis is None or is_along_batch):
            if (self.fn is keras.losses.circle or is_along_batch) and not replica.has_all:
                replica.warn(f"`loss={self.name!r}` {COMPARES}")
            return original(self, y_true, y_pred)
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        y_true, y_pred = squeeze_or_expand_to_same_rank(y_true, y_pred)
        values = sums(y_true, y_pred, axis, replica, **options)
        # The values belong to classes, not to examples, so they are reduced here.
        return ops.sum(values) if self.reduction in ("sum", None, "none") else ops.mean(values)

    return call


def axes_of(axis: Any, rank: int) -> set[int]:
    """Returns the axes that the option `axis` of a loss or a metric means, counted from 0.

    Args:
        axis: The option: an integer or several, which may be negative.
        rank: The number of axes of the predictions.
    """
    return {each % rank for each in ([axis] if isinstance(axis, int) else axis)}


def _sums(replica: Replica, axis: Any, *values: Tensor) -> list[Tensor]:
    """Sums each of `values` over the examples of all replicas.

    It is a collective: all replicas must call it. The gradients of the sums flow back to the
    examples of every replica.

    Args:
        replica: The replica that is being traced.
        axis: The axes to sum over, as the user has passed them to the loss; None for all axes.
        *values: Tensors with a row for each example.

    Raises:
        CannotMeetError: If the replica must not communicate, such as in a part of a step that XLA
            compiles.
    """
    if replica.postponed is not None:
        raise CannotMeetError(
            "`jit_compile=True` on several replicas does not go with losses that are taken over "
            "the whole batch (Dice, Tversky), because the replicas meet outside of XLA. Compile "
            "the model with `jit_compile=False`."
        )
    total: list[Tensor] = all_reduce_sum([ops.sum(value, axis=axis) for value in values])
    return total


def _dice(y_true: Tensor, y_pred: Tensor, axis: Any, replica: Replica) -> Tensor:
    both, true, pred = _sums(replica, axis, y_true * y_pred, y_true, y_pred)
    return 1 - ops.divide(2.0 * both, true + pred + keras.config.epsilon())


def _tversky(
    y_true: Tensor,
    y_pred: Tensor,
    axis: Any,
    replica: Replica,
    alpha: float = 0.5,
    beta: float = 0.5,
) -> Tensor:
    both, missed, wrong = _sums(
        replica, axis, y_true * y_pred, y_true * (1 - y_pred), (1 - y_true) * y_pred
    )
    # Keras swaps targets and predictions: its alpha weights false negatives (`missed`), its beta
    # false positives (`wrong`).
    divisor = both + missed * alpha + wrong * beta + keras.config.epsilon()
    return 1 - ops.divide(both, divisor)
