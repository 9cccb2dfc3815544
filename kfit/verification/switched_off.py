"""Switches off what layers draw at random, to compare the rest of a model."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.internals import patch_points as points
from kfit.internals.patching import patched

_SEED = 7
"""The seed of the numbers that layers get in place of their own draws."""


class _Thread(threading.local):
    """What a thread is doing: each replica is traced in a thread of its own."""

    def __init__(self) -> None:
        self.depth = 0


_thread = _Thread()


@contextmanager
def without_draws(layers: list[keras.Layer]) -> Iterator[None]:
    """Context in which layers are switched off that draw random numbers.

    Each layer is called with `training=False`, if its `call` has this argument. What it draws all
    the same, such as the noise of a variational autoencoder, is equal for all examples of a batch,
    and so on every number of replicas.

    Args:
        layers: The layers.
    """

    def wrap(layer: keras.Layer, call: Callable[..., Any]) -> Callable[..., Any]:
        forced = {"training": False} if has_training(layer) else {}

        def switched_off(*args: Any, **kwargs: Any) -> Any:
            _thread.depth += 1
            try:
                return call(*args, **{**kwargs, **forced})
            finally:
                _thread.depth -= 1

        return switched_off

    with ExitStack() as stack:
        for point in points.DRAW_SHAPE:
            stack.enter_context(patched(point, _equal_for_all))
        stack.enter_context(patched(points.DROPOUT, _equal_dropout))
        stack.enter_context(calls_wrapped(layers, wrap))
        yield


def has_training(layer: keras.Layer) -> bool:
    """Returns whether the `call` of a layer takes the argument `training`."""
    return "training" in inspect.signature(type(layer).call).parameters


@contextmanager
def calls_wrapped(
    layers: list[keras.Layer], wrap: Callable[[keras.Layer, Any], Any]
) -> Iterator[None]:
    """Context in which the `call` of each layer is replaced by `wrap(layer, call)`."""
    own = {id(layer): vars(layer).get("call") for layer in layers}
    for layer in layers:
        # Bypasses Keras' tracking of attributes: the function is no part of the layer.
        object.__setattr__(layer, "call", wrap(layer, layer.call))
    try:
        yield
    finally:
        for layer in layers:
            if own[id(layer)] is None:
                object.__delattr__(layer, "call")
            else:
                object.__setattr__(layer, "call", own[id(layer)])


def _equal_for_all(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that draws one row for all examples, in a layer that is switched off."""

    def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
        if not _thread.depth:
            return original(shape, *args, **kwargs)
        whole = tf.convert_to_tensor(shape, tf.int32)
        row = tf.concat([tf.ones_like(whole[:1]), whole[1:]], 0)
        drawn = original(row, *args, **{**kwargs, "seed": _SEED})
        return tf.ensure_shape(tf.broadcast_to(drawn, whole), _static(shape))

    return draw


def _equal_dropout(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that drops the same units of all examples, as `_equal_for_all`."""

    def dropout(inputs: Any, rate: Any, noise_shape: Any = None, seed: Any = None) -> Any:
        if not _thread.depth:
            return original(inputs, rate, noise_shape, seed)
        shape = noise_shape or (None,) * len(inputs.shape)
        return original(inputs, rate, (1, *shape[1:]), _SEED)

    return dropout


def _static(shape: Any) -> Any:
    if isinstance(shape, tf.Tensor):
        return tf.TensorShape(None)
    return [None if isinstance(size, tf.Tensor) else size for size in shape]
