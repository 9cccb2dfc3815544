"""What layers hold."""

from __future__ import annotations

from typing import Any

import keras

from kfit.internals.private import imported, uses

KERAS_NUMPY: Any = imported(
    "keras.src.backend.tensorflow.numpy",
    because="what `keras.ops.take`, and with it the Embedding layer, comes to is in this module",
)


@uses("keras.Layer._flatten_layers", because="`Model.layers` leaves out the layers of layers")
def all_layers(layer: keras.Layer) -> list[keras.Layer]:
    """A layer or model, and all layers inside of it, each once."""
    return list(layer._flatten_layers())


@uses(
    "keras.Layer._non_trainable_variables",
    because="`Layer.non_trainable_variables` holds those of the layers inside, and frozen weights",
)
def own_non_trainable_variables(layer: keras.Layer) -> list[keras.Variable]:
    """The variables that a layer itself has made without training them."""
    return list(layer._non_trainable_variables)


@uses("keras.Layer._losses", because="`Layer.losses` can be read only, and computes them anew")
def added_losses(layer: keras.Layer) -> list[Any]:
    """The list of what a layer has added to the loss since it was cleared."""
    losses: list[Any] = layer._losses
    return losses


def set_added_losses(layer: keras.Layer, losses: list[Any]) -> None:
    """Puts another list in the place of `added_losses`."""
    # Past Keras' tracker, for which a list on a layer is one of layers or variables.
    vars(layer)["_losses"] = losses


@uses(
    "keras.layers.BatchNormalization._reduction_axes",
    because="a layer tells only the axis that it keeps, before its input's rank is known",
)
def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The axes over which a BatchNormalization takes its statistics."""
    return list(layer._reduction_axes)
