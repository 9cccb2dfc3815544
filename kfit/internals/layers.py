"""Private state of Keras' layers."""

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
    """A layer or model and all layers nested in it, each once."""
    return list(layer._flatten_layers())


@uses(
    "keras.Layer._non_trainable_variables",
    because="`Layer.non_trainable_variables` holds those of the layers inside, and frozen weights",
)
def own_non_trainable_variables(layer: keras.Layer) -> list[keras.Variable]:
    """The variables that a layer itself has made as non-trainable."""
    return list(layer._non_trainable_variables)


@uses("keras.Layer._losses", because="`Layer.losses` can be read only, and computes them anew")
def added_losses(layer: keras.Layer) -> list[Any]:
    """The list of losses that a layer has added since the list was last cleared."""
    losses: list[Any] = layer._losses
    return losses


def set_added_losses(layer: keras.Layer, losses: list[Any]) -> None:
    """Replaces the list that `added_losses` returns."""
    # Bypasses Keras' attribute tracking, which takes a list for one of layers or variables.
    vars(layer)["_losses"] = losses


@uses(
    "keras.layers.BatchNormalization._reduction_axes",
    because="a layer tells only the axis that it keeps, before its input's rank is known",
)
def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """The axes over which a BatchNormalization computes its statistics."""
    return list(layer._reduction_axes)
