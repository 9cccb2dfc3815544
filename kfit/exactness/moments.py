"""Mean and variance of a synchronized BatchNormalization with a mask, over all replicas.

Keras takes the statistics over all replicas only without a mask. With a mask, Keras takes the
statistics over each replica's own examples, so the replicas' moving averages would differ.
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
    """Returns a replacement of the method by which BatchNormalization computes mean and variance.

    In a synchronized layer with a mask, the replacement takes the statistics over all replicas.
    Keras does that only without a mask. Where replicas cannot communicate, as in a part of a step
    that XLA compiles, the replacement raises CannotMeetError for every synchronized layer.
    """

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
    """Computes mean and variance of the unmasked values of all replicas, by Keras' formulas.

    It is a collective: all replicas must call it.

    Args:
        inputs: The replica's inputs of the layer.
        mask: The mask: False for each step of a sequence to leave out.
        axes: The axes over which the statistics are taken.
    """
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
