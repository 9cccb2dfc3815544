"""Finds the layers whose outputs on replicas differ from those on one device.

The model is called twice on one batch, in training mode: on one device, where the output of each
layer is recorded, and on the replicas. There, what each layer computes is recorded as well, but the
next layers get the output of one device in its place. So each layer has the same inputs in both
calls, and every layer that differs does so by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.inputs import ReadBatches
from kfit.internals import patch_points as points
from kfit.internals.layers import all_layers
from kfit.internals.patching import patched
from kfit.objects import Generators
from kfit.verification.few_batches import inputs_of
from kfit.verification.runs import Runs, Way, epsilon_of
from kfit.verification.switched_off import calls_wrapped

_ROUNDING = 512.0
"""The rounding errors within one layer, relative to the layer's largest output."""
_COARSE_ROUNDING = 16.0
"""The same in 16 bits: sums are rounded to them once, and 512 errors would be the output itself."""
_COARSE = 1e-4
"""A rounding error, relative to a number, above which a dtype has 16 bits or fewer."""

Outputs = dict[str, np.ndarray]


@dataclass
class Seen:
    """What was seen of the layers while they were called.

    Attributes:
        layers: The layer of each recorded output, by the output's key; keys are in the order of the
            calls.
        drawing: Names of layers that draw from a `keras.random.SeedGenerator`.
        constant: Names of layers that draw from the generators of Python or NumPy, so that the
            numbers become constants of the graph.
    """

    layers: dict[str, keras.Layer] = field(default_factory=dict)
    drawing: set[str] = field(default_factory=set)
    constant: set[str] = field(default_factory=set)


def outputs_of(
    runs: Runs, way: Way, seen: Seen, given: Outputs | None = None, times: int = 1
) -> list[Outputs]:
    """Calls the model on the first batch in training mode, and returns the outputs of its layers.

    Args:
        runs: The runs, from whose beginning the model is called.
        way: The strategy on which the model is called.
        seen: What is seen of the layers is added to it.
        given: The outputs that the next layers get, by key, in place of those that are computed.
        times: How often to call it.

    Returns:
        The outputs of each call: tensors with a row for each example, by key.
    """
    x = inputs_of(runs.batches[0])
    data = (x, dict(given)) if given else x
    with _recording(runs.model, seen, bool(given)), patched(points.NEXT_SEED, _noting(seen)):
        found = []
        for _ in range(times):
            runs.beginning.give()
            outputs = way.predict(ReadBatches([(data,)]), verbose=0)
            found.append({key: np.asarray(value) for key, value in outputs.items()})
    return found


def differing(runs: Runs, one: Outputs, other: Outputs) -> list[str]:
    """Returns the keys of the outputs that differ by more than rounding, in the order of calls."""
    found = []
    allowed = _rounding(epsilon_of(runs.model))
    for key, value in one.items():
        there = other.get(key)
        if there is None or there.shape != value.shape:
            found.append(key)
            continue
        a, b = value.astype("float64"), there.astype("float64")
        size = float(np.abs(a[np.isfinite(a)]).max(initial=0.0)) or 1.0
        if not np.allclose(a, b, rtol=0.0, atol=allowed * size, equal_nan=True):
            found.append(key)
    return found


def is_coarse(model: keras.Model) -> bool:
    """Returns whether a model has numbers of 16 bits or fewer, whose rounding may hide anything."""
    return epsilon_of(model) > _COARSE


def _rounding(epsilon: float) -> float:
    return (_COARSE_ROUNDING if epsilon > _COARSE else _ROUNDING) * epsilon


class _Thread(threading.local):
    """What a thread is doing: each replica is traced in a thread of its own."""

    def __init__(self) -> None:
        self.calls = 0
        self.found: Outputs = {}
        self.given: dict[str, Any] | None = None
        self.rows: int | None = None
        self.graph: Any = None
        self.stack: list[str] = []


_thread = _Thread()


@contextmanager
def _recording(model: keras.Model, seen: Seen, is_given: bool) -> Iterator[None]:
    """Context in which `predict` returns the outputs of the model's layers."""

    def predict_step(data: Any) -> Any:
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        _thread.given = None
        if is_given:
            x, _thread.given = x
        _thread.calls, _thread.found, _thread.stack = 0, {}, []
        first = keras.tree.flatten(x)[0]
        _thread.rows, _thread.graph = first.shape[0], _graph_of(first)
        model(x, training=True)
        return _thread.found

    def wrap(layer: keras.Layer, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            before = Generators.now()
            _thread.stack.append(layer.name)
            try:
                output = call(*args, **kwargs)
            finally:
                _thread.stack.pop()
            if Generators.now() != before:
                seen.constant.add(layer.name)
            return _recorded(layer, output, seen)

        return recorded

    object.__setattr__(model, "predict_step", predict_step)
    try:
        with calls_wrapped([layer for layer in all_layers(model) if layer is not model], wrap):
            yield
    finally:
        object.__delattr__(model, "predict_step")


def _recorded(layer: keras.Layer, output: Any, seen: Seen) -> Any:
    """Records the output of a layer, and returns what the next layers get."""
    # A tensor of the body of a loop, as in an RNN, cannot leave it.
    if not _has_rows(output) or _graph_of(output) is not _thread.graph:
        return output
    key = f"{_thread.calls:05d} {layer.name}"
    _thread.calls += 1
    seen.layers[key] = layer
    value = tf.cast(output, tf.int32) if output.dtype == tf.bool else output
    _thread.found[key] = tf.identity(value)
    if _thread.given is None or key not in _thread.given:
        return output
    return tf.ensure_shape(tf.cast(_thread.given[key], output.dtype), output.shape)


def _graph_of(tensor: Any) -> Any:
    """Returns the graph that a tensor belongs to; None if the step runs eagerly."""
    return getattr(tensor, "graph", None)


def _has_rows(output: Any) -> bool:
    is_tensor = isinstance(output, tf.Tensor) and output.shape.rank
    return bool(is_tensor and output.dtype != tf.string and output.shape[0] == _thread.rows)


def _noting(seen: Seen) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a wrapper of `SeedGenerator.next` that notes the layer that draws."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def next_seed(self: Any, *args: Any, **kwargs: Any) -> Any:
            if _thread.stack:
                seen.drawing.add(_thread.stack[-1])
            return original(self, *args, **kwargs)

        return next_seed

    return wrap
