"""TensorFlow 1 functions that TensorFlow 2 has only under `tf.compat.v1`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def current_graph() -> Any:
    """The graph that is being traced; an unused default graph if nothing is being traced."""
    return tf.compat.v1.get_default_graph()


def of_unknown_shape(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """The same tensor with only this static shape, so that the graph does not show more of it."""
    return tf.compat.v1.placeholder_with_default(tensor, shape)
