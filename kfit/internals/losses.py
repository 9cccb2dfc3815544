"""Imports Keras' private functions of losses; reads the options of losses and metrics."""

from __future__ import annotations

from typing import Any

import keras

from kfit.internals.private import imported, uses

LOSS_MODULE: Any = imported(
    "keras.src.losses.loss", because="losses are scaled and reduced in functions of this module"
)

LOSS_FUNCTION: Any = imported(
    "keras.src.losses.losses.LossFunctionWrapper",
    because="Keras exports the class of losses that call a function under no name",
)

apply_mask: Any = imported(
    "keras.src.losses.loss.apply_mask",
    because="nothing else puts a mask into weights as Keras does",
)

mask_of: Any = imported(
    "keras.src.backend.common.masking.get_keras_mask",
    because="nothing else tells the mask of a tensor that is given to a loss",
)

set_mask: Any = imported(
    "keras.src.backend.common.masking.set_keras_mask",
    because="nothing else gives a mask to a tensor for a loss",
)

squeeze_or_expand_to_same_rank: Any = imported(
    "keras.src.losses.loss.squeeze_or_expand_to_same_rank",
    because="nothing else makes targets and predictions alike as Keras does",
)


@uses(
    "keras.losses.MeanSquaredError._fn_kwargs",
    because="a loss tells the options of its function in its config only, serialized",
)
def options_of(loss: keras.losses.Loss) -> dict[str, Any]:
    """Returns the keyword arguments with which a loss calls its function, such as `axis`."""
    return dict(loss._fn_kwargs)


@uses(
    "keras.metrics.MeanSquaredError._fn_kwargs",
    because="a metric tells the options of its function in its config only, and not all of them",
)
def options_of_metric(metric: keras.metrics.MeanMetricWrapper) -> dict[str, Any]:
    """Returns the keyword arguments with which a metric calls its function, such as `axis`."""
    return dict(metric._fn_kwargs)


@uses(
    "keras.metrics.MeanSquaredError._fn",
    because="a metric tells its function in its config only, serialized",
)
def function_of_metric(metric: keras.metrics.MeanMetricWrapper) -> Any:
    """Returns the function that a metric calls."""
    return metric._fn
