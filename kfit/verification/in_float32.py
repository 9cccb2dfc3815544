"""Lets a model compute in float32 for a while, whose rounding hides less than that of 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import keras

from kfit.internals.layers import all_layers, set_dtype_policy

_COARSE = ("bfloat16", "float16")


def coarse_dtypes(model: keras.Model) -> list[str]:
    """Returns the dtypes of 16 bits in which layers of a model compute, in alphabetical order."""
    return sorted({layer.compute_dtype for layer in _coarse_layers(model)})


@contextmanager
def in_float32(model: keras.Model) -> Iterator[None]:
    """Context in which the layers that compute in 16 bits do so in float32.

    Their variables stay as they are. Functions that were traced before compute in 16 bits.
    """
    float32 = keras.DTypePolicy("float32")
    layers = _coarse_layers(model)
    before = [set_dtype_policy(layer, float32) for layer in layers]
    try:
        yield
    finally:
        for layer, policy in zip(layers, before, strict=True):
            set_dtype_policy(layer, policy)


def _coarse_layers(model: keras.Model) -> list[keras.Layer]:
    return [
        layer
        for layer in all_layers(model)
        if layer.compute_dtype in _COARSE and not layer.quantization_mode
    ]
