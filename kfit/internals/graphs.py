"""What TensorFlow 2 has kept of TensorFlow 1 and has no other name for."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def current_graph() -> Any:
    """The graph that is being traced; one that nobody sees where nothing is."""
    return tf.compat.v1.get_default_graph()


def of_unknown_shape(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """The tensor, of which the graph that is being traced knows no more than this shape."""
    return tf.compat.v1.placeholder_with_default(tensor, shape)
