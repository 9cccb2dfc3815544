"""Asks about tensors while the step that makes them is traced."""

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.graphs.origins import Origins


def asked_in_step(ask: Callable[[Any, Origins], Any], *shape: int | None) -> Any:
    """Returns what `ask(x, origins)` returns in a graph with examples of a shape, `x`."""
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, *shape))])
    def step(x: Any) -> None:
        origins = Origins()
        origins.begin()
        found.append(ask(origins.own(x), origins))

    step.get_concrete_function()
    return found[0]
