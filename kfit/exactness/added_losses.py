"""What layers add to the loss while they are called (`add_loss`, activity regularizers).

Keras keeps it on the layer until the loss is computed. Replicas are traced in turns: where they
meet in between (synchronized BatchNormalization, masked losses), one would find what another one's
call has left there. So each replica keeps its own.
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
    """A method of `keras.Layer` that works on the losses it added, those of the replica."""

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
    """`Layer.add_loss`: values of examples are summed, by Keras and over all replicas."""

    def add_loss(self: keras.Layer, loss: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is not None and not replica.has_all:
            loss = keras.tree.map_structure(lambda each: _estimate(self, each, replica), loss)
        return original(self, loss, *args, **kwargs)

    return add_loss


def _estimate(layer: keras.Layer, loss: Any, replica: Replica) -> Any:
    """The replica's estimate of what the whole batch would add to the loss."""
    if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating:
        return loss
    if not loss.shape.rank:
        return estimate_of(loss, replica, f"What the layer {layer.name!r} adds to the loss")
    if tf.executing_eagerly():  # no graph says what it is made of
        of_rows = loss.shape[:1] == [max(1, int(replica.examples))]
    else:
        of_rows = "rows" in kinds_of(loss, replica)
    if of_rows:
        return replica.origins.estimate(tf.math.divide_no_nan(loss, replica.share_as(loss.dtype)))
    return loss
