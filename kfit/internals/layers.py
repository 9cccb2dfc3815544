"""Functions that read and change private state of Keras' layers."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import keras

from kfit.internals.private import imported, uses

KERAS_NUMPY: Any = imported(
    "keras.src.backend.tensorflow.numpy",
    because="what `keras.ops.take`, and with it the Embedding layer, comes to is in this module",
)

_TRACKING: Any = imported(
    "keras.src.utils.tracking",
    because="Keras makes lists, dicts and sets in a layer's attributes into those of this module",
)

TRACKED: dict[type, type] = {
    kind: next(plain for plain in (list, set, OrderedDict, dict) if issubclass(kind, plain))
    for kind in vars(_TRACKING).values()
    if isinstance(kind, type) and issubclass(kind, (list, set, dict)) and kind is not OrderedDict
}
"""The classes of the lists, sets and dicts in attributes of layers, each with the type that the
program has given."""


@uses("keras.Layer._flatten_layers", because="`Model.layers` leaves out the layers of layers")
def all_layers(layer: keras.Layer) -> list[keras.Layer]:
    """Returns a layer or model, and all layers nested in it, each once."""
    return list(layer._flatten_layers())


@uses(
    "keras.Layer._non_trainable_variables",
    because="`Layer.non_trainable_variables` holds those of the layers inside, and frozen weights",
)
def own_non_trainable_variables(layer: keras.Layer) -> list[keras.Variable]:
    """Returns the variables that a layer itself has made as non-trainable.

    Variables of layers inside the layer are left out, and also the weights of a frozen layer.
    """
    return list(layer._non_trainable_variables)


@uses("keras.Layer._losses", because="`Layer.losses` can be read only, and computes them anew")
def added_losses(layer: keras.Layer) -> list[Any]:
    """Returns the losses that a layer has added (`add_loss`), as the layer's own list.

    Keras clears the list in each call of the outermost layer or model.
    """
    losses: list[Any] = layer._losses
    return losses


def set_added_losses(layer: keras.Layer, losses: list[Any]) -> None:
    """Replaces the list of the losses that a layer has added.

    Replicas share the layer, so kfit gives it each replica's list in turn.
    """
    # Bypasses Keras' attribute tracking, which takes a list for one of layers or variables.
    vars(layer)["_losses"] = losses


@uses(
    "keras.layers.BatchNormalization._reduction_axes",
    because="a layer tells only the axis that it keeps, before its input's rank is known",
)
def reduction_axes(layer: keras.layers.BatchNormalization) -> list[int]:
    """Returns the axes over which a BatchNormalization computes its statistics."""
    return list(layer._reduction_axes)


@uses(
    "keras.Layer._dtype_policy",
    because="the setter of `Layer.dtype_policy` changes an entry of a map that layers share",
)
def set_dtype_policy(layer: keras.Layer, policy: Any) -> Any:
    """Sets the dtype policy of a layer, which the layer may have built with another one.

    Returns:
        The policy that the layer had.
    """
    before = layer._dtype_policy
    layer._dtype_policy = policy
    return before
