"""Losses of Keras that are not a mean or sum of a value for each example.

Dice and Tversky divide sums over all examples of the batch, so a replica cannot estimate them from
its own examples. Here these sums are taken over all replicas before the division. Circle compares
every example of a batch with every other one; each replica compares only its own, with a warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from kfit.exactness.collectives import all_reduce_sum
from kfit.exactness.replica_context import CannotMeetError, Replica, current_replica
from kfit.internals.losses import options_of, squeeze_or_expand_to_same_rank

Tensor = Any


def over_all_replicas(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `call` of Keras' losses, for steps on several replicas.

    The replacement computes Dice and Tversky over the global batch, unless their `axis` leaves out
    the axis of the examples. For any other loss it calls the original, and warns if the loss is
    Circle.
    """

    def call(self: Any, y_true: Tensor, y_pred: Tensor) -> Tensor:
        replica = current_replica()
        if replica is None:
            return original(self, y_true, y_pred)
        if self.fn is keras.losses.circle and not replica.has_all:
            warnings.warn(
                f"`loss`={self.name!r} compares the examples of a batch with each other. Each "
                "replica compares only its own ones, so that the loss depends on the number of "
                "replicas.",
                stacklevel=2,
            )
        sums = {keras.losses.dice: _dice, keras.losses.tversky: _tversky}.get(self.fn)
        options = options_of(self)
        axis = options.pop("axis", None)
        if (
            sums is None
            or replica.has_all
            or (axis is not None and 0 not in _axes(axis, len(y_pred.shape)))
        ):
            return original(self, y_true, y_pred)
        y_pred = ops.convert_to_tensor(y_pred)
        y_true = ops.cast(y_true, y_pred.dtype)
        y_true, y_pred = squeeze_or_expand_to_same_rank(y_true, y_pred)
        values = sums(y_true, y_pred, axis, replica, **options)
        # The values belong to classes, not to examples, so they are reduced here.
        return ops.sum(values) if self.reduction in ("sum", None, "none") else ops.mean(values)

    return call


def _axes(axis: Any, rank: int) -> set[int]:
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
