"""Tells once of layers whose numbers depend on how many replicas there are, as they do in Keras."""

from __future__ import annotations

import weakref

import keras

from kfit.distribute.strategy import Strategy
from kfit.internals.layers import all_layers

_told: dict[int, weakref.ref[keras.Model]] = {}
"""The models that were told of, by their ids: a class of the user's may have no hash."""


def tell_of_unsynchronized(model: keras.Model, strategy: Strategy) -> None:
    """Prints which BatchNormalization takes statistics of each replica's rows; once for a model.

    Nothing is printed if there is one replica, as with parameter servers, where each worker takes
    whole batches. A frozen layer takes its moving statistics, which are equal on all replicas.

    Args:
        model: The model that is trained.
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.
    """
    if strategy.num_replicas == 1:
        return
    known = _told.get(id(model))
    if known is not None and known() is model:
        return
    found = [
        layer.name
        for layer in all_layers(model)
        if isinstance(layer, keras.layers.BatchNormalization)
        and layer.trainable
        and not layer.synchronized
    ]
    if found:
        _told[id(model)] = weakref.ref(model)
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        print(
            f"kfit: {found[0]!r}{more} of the model normalizes by the rows of each of the "
            f"{strategy.num_replicas} replicas, as in Keras: the numbers depend on how many there "
            "are. BatchNormalization(synchronized=True) takes those of the whole batch.",
            flush=True,
        )
