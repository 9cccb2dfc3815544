"""Losses that layers add while they are called (`add_loss`, activity regularizers).

Keras keeps these losses in a list on the layer until the model's loss is computed. All replicas use
the same layer object. When one replica communicates with the others during the call (synchronized
BatchNormalization, masked losses), its tracing is interrupted, and the next replica is traced up to
the same place. The next replica would then find the losses that the interrupted replica has added.
So each replica gets a list of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.batch_kinds import has_rows_of_examples
from kfit.exactness.replica_context import Replica, current_replica
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals.layers import added_losses, set_added_losses


def of_replica(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of a `keras.Layer` method that uses the layer's list of added losses.

    It is made for the methods that add losses (`add_loss`), read them and clear the list. In a step
    on several replicas, the replacement puts the current replica's own list on the layer while the
    method runs. Otherwise replicas, which share the layer, would find each other's losses.
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

    On each replica the layer gets a part of the global batch, and calls `add_loss` with a loss of
    this part. The replacement converts this loss to the replica's *estimate*, and adds the estimate
    instead. The sum of the replicas' estimates, weighted by their shares (fractions) of the
    examples, is exactly the loss that the layer would add for the whole global batch on one device.
    So the layer's loss counts once, and not once for each replica. kfit warns of a scalar that it
    cannot convert.
    """

    def add_loss(self: keras.Layer, loss: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        if replica is not None and not replica.has_all:
            loss = keras.tree.map_structure(lambda each: _estimate(self, each, replica), loss)
        return original(self, loss, *args, **kwargs)

    return add_loss


def _estimate(layer: keras.Layer, loss: Any, replica: Replica) -> Any:
    """Converts a loss that a layer adds on one replica to an estimate for the global batch.

    The sum of the replicas' estimates, weighted by their shares of the examples, is the loss that
    the layer would add for the global batch. If the layer adds a tensor with a value for each
    example, Keras sums the values; so does kfit, and `estimate_of` converts the sum, as it does any
    scalar. Where there is no graph that can be read, the values are divided by the share, as a sum
    over the replica's examples is. Anything else is returned unchanged.

    Args:
        layer: The layer, which a warning names.
        loss: The loss that the layer adds.
        replica: The replica that is being traced.
    """
    if not isinstance(loss, tf.Tensor) or not loss.dtype.is_floating:
        return loss
    if not loss.shape.rank:
        return estimate_of(loss, replica, f"What the layer {layer.name!r} adds to the loss")
    if replica.can_be_read:
        value = tf.reduce_sum(loss) if has_rows_of_examples(loss, replica) else loss
        return estimate_of(value, replica, f"What the layer {layer.name!r} adds to the loss")
    if not tf.executing_eagerly() or loss.shape[:1] == [max(1, int(replica.examples))]:
        return replica.origins.estimate(replica.divided_by_share(loss))
    return loss
