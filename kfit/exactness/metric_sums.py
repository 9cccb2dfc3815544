"""Wrappers of `update_state`, so that what the replicas add to a metric sums up to one device's.

Each replica has its own copy of a metric's variables, and the metric's value is computed from the
sums of the copies. Each wrapper changes only what a replica's step does. Anywhere else it calls
Keras' method unchanged. `kfit.exactness.patches` lists the methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.replica_context import Replica, one_of_several
from kfit.exactness.rows import is_scalar
from kfit.exactness.scalar_estimates import estimate_of, warn_of_rows

Tensor = Any


def shared_mean(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.Mean.update_state`, for steps on several replicas.

    A scalar describes a whole batch, such as its loss. The replacement converts a replica's scalar
    to an estimate of the global batch's value. The weight of the estimate is the replica's share of
    the examples, unless the caller gives a weight.
    """

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.zero_if_empty(keras.ops.cast(values, self.dtype))
            sample_weight = replica.share_as(self.dtype) if sample_weight is None else sample_weight
        else:
            warn_of_rows(values, replica, _given(self))
            if sample_weight is not None and is_scalar(sample_weight):
                # Keras adds the mean of the values, with this one weight. The mean of no values
                # would be NaN.
                values = replica.zero_if_empty(keras.ops.mean(keras.ops.cast(values, self.dtype)))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def shared_sum(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.Sum.update_state`, for steps on several replicas.

    A scalar describes a whole batch, such as its loss. The replacement converts a replica's scalar
    to an estimate of the global batch's value, and multiplies the estimate by the replica's share
    of the examples.
    """

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.weigh(keras.ops.cast(values, self.dtype))
        else:
            warn_of_rows(values, replica, _given(self))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def adding_up(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `update_state` of Keras' metrics other than `Mean` and `Sum`.

    All of these metrics add sums over the examples, which are right on replicas. So the replacement
    only notes that the values which the metric assigns to its variables need no conversion.
    """

    def update_state(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, *args, **kwargs)
        with replica.adding_up():
            return original(self, *args, **kwargs)

    return update_state


def _estimate_for(metric: keras.Metric, value: Any, replica: Replica) -> Any:
    is_loss = metric.name == "loss"  # the loss that Keras logs
    what = "The loss of this model" if is_loss else _given(metric)
    return estimate_of(value, replica, what)


def _given(metric: keras.Metric) -> str:
    return f"What the metric {metric.name!r} is given"


def weighed_by(examples: Callable[[], Tensor | None]) -> Callable[..., Callable[..., None]]:
    """Returns a wrapper of `Mean.update_state` that weights each value by the size of its batch.

    It is used for the logged losses of a model's single outputs.

    Args:
        examples: Returns the number of examples of the current batch. If it returns None, the
            weight that `update_state` got is used.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def update_state(values: Tensor, sample_weight: Tensor = None) -> None:
            count = examples()
            original(values, sample_weight if count is None else tf.cast(count, tf.float32))

        return update_state

    return wrap
