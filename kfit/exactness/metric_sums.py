"""Wrappers that make what the replicas add to a metric sum up to what one device adds.

Each function here wraps a method of Keras' metrics (`kfit.exactness.patches` lists them) and calls
it unchanged unless this thread is tracing a replica's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.replica_context import Replica, one_of_several
from kfit.exactness.rows import is_scalar
from kfit.exactness.scalar_estimates import estimate_of

Tensor = Any


def shared_mean(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Mean.update_state`: a scalar is an estimate for the batch; its weight is the share."""

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.zero_if_empty(keras.ops.cast(values, self.dtype))
            sample_weight = replica.share_as(self.dtype) if sample_weight is None else sample_weight
        elif sample_weight is not None and is_scalar(sample_weight):
            # Keras adds the mean of the values, with this one weight. The mean of no values would
            # be NaN.
            values = replica.zero_if_empty(keras.ops.mean(keras.ops.cast(values, self.dtype)))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def shared_sum(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Sum.update_state`: a scalar is an estimate for the batch, multiplied by the share."""

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.weigh(keras.ops.cast(values, self.dtype))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def adding_up(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `update_state` of Keras' other metrics, which all add sums over the examples."""

    def update_state(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, *args, **kwargs)
        with replica.adding_up():
            return original(self, *args, **kwargs)

    return update_state


def _estimate_for(metric: keras.Metric, value: Any, replica: Replica) -> Any:
    is_loss = metric.name == "loss"  # the loss that Keras logs
    what = "The loss of this model" if is_loss else f"What the metric {metric.name!r} is given"
    return estimate_of(value, replica, what)


def weighed_by(examples: Callable[[], Tensor | None]) -> Callable[..., Callable[..., None]]:
    """Makes a mean weight each value by the number of examples of the batch.

    Args:
        examples: Returns that number; None leaves the weight to the caller of `update_state`.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def update_state(values: Tensor, sample_weight: Tensor = None) -> None:
            count = examples()
            original(values, sample_weight if count is None else tf.cast(count, tf.float32))

        return update_state

    return wrap
