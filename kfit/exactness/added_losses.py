"""Losses that layers add while they are called (`add_loss`, activity regularizers).

Keras keeps these losses in a list on the layer until the model's loss is computed. Replicas share
the layer, and are traced in turns: where they communicate during the call (synchronized
BatchNormalization, masked losses), tracing continues with another replica. This replica would find
the added losses of the first one. So each replica gets a list of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.replica_context import Replica, current_replica
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals.layers import added_losses, set_added_losses


def of_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of a method of `keras.Layer`, for steps on several replicas.

    The replacement makes the method use the replica's own list of added losses (`add_loss`).
    Otherwise replicas, which share the layer, would find each other's losses.
    """

    def method(self: keras.Layer, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is None:
            return original(self, *args, **kwargs)
        kept = added_losses(self)
        set_added_losses(self, replica.added_losses.setdefault(id(self), []))
        try:
            return original(self, *args, **kwargs)
        finally:
            set_added_losses(self, kept)

    return method


def counted_once(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `Layer.add_loss`, for steps on several replicas.

    The replacement converts an added loss to the replica's estimate of the loss that the layer
    would add for the global batch. This loss is the sum of the replicas' estimates, weighted by the
    replicas' shares of the examples.
    """

    def add_loss(self: keras.Layer, loss: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is not None and not replica.has_all:
            loss = keras.tree.map_structure(lambda each: _estimate(self, each, replica), loss)
        return original(self, loss, *args, **kwargs)

    return add_loss


def _estimate(layer: keras.Layer, loss: Any, replica: Replica) -> Any:
    """Returns a replica's estimate of the loss that a layer would add for the global batch.

    A tensor with a value for each example is divided by the replica's share of the examples,
    because Keras sums its elements.
    """
    if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating:
        return loss
    if not loss.shape.rank:
        return estimate_of(loss, replica, f"What the layer {layer.name!r} adds to the loss")
    if tf.executing_eagerly():  # there is no graph to read
        of_rows = loss.shape[:1] == [max(1, int(replica.examples))]
    else:
        of_rows = "rows" in kinds_of(loss, replica)
    if of_rows:
        return replica.origins.estimate(tf.math.divide_no_nan(loss, replica.share_as(loss.dtype)))
    return loss
