"""Mean and variance of a synchronized BatchNormalization with a mask, over all replicas.

Keras takes the statistics over all replicas only without a mask. With a mask it takes them over
each replica's own examples, so the replicas' moving averages would differ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.collectives import all_reduce_sum
from kfit.exactness.replica_context import CannotMeetError, current_replica
from kfit.internals.layers import reduction_axes

Tensor = Any


def over_all_replicas(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `BatchNormalization._moments`: masked statistics are taken over all replicas, too."""

    def moments(self: keras.layers.BatchNormalization, inputs: Tensor, mask: Tensor) -> Any:
        replica = current_replica()
        if not self.synchronized or replica is None:
            return original(self, inputs, mask)
        if replica.postponed is not None:
            raise CannotMeetError(
                "`jit_compile=True` on several replicas does not go with "
                f"BatchNormalization(synchronized=True), which the layer {self.name!r} is, because "
                "the replicas meet outside of XLA. Compile the model with `jit_compile=False`, or "
                "make the layer with `synchronized=False`."
            )
        if mask is None or replica.has_all:
            return original(self, inputs, mask)
        return _masked(inputs, mask, reduction_axes(self))

    return moments


def _masked(inputs: Tensor, mask: Tensor, axes: list[int]) -> tuple[Tensor, Tensor]:
    """Mean and variance of all replicas' unmasked values, by Keras' formulas. A collective."""
    kept = tf.broadcast_to(tf.cast(mask, tf.bool)[..., None], tf.shape(inputs))
    values = tf.where(kept, inputs, tf.zeros_like(inputs))
    total, count = all_reduce_sum(
        [tf.reduce_sum(values, axes), tf.reduce_sum(tf.cast(kept, inputs.dtype), axes)]
    )
    divisor = count + keras.config.epsilon()
    mean = total / divisor
    shape = [1 if axis in axes else -1 for axis in range(inputs.shape.rank)]
    distance = tf.where(kept, inputs - tf.reshape(mean, shape), tf.zeros_like(inputs))
    return mean, all_reduce_sum(tf.reduce_sum(tf.square(distance), axes)) / divisor
