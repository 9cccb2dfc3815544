"""TensorFlow 1 functions that TensorFlow 2 has only under `tf.compat.v1`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def current_graph() -> Any:
    """Returns the graph that is being traced.

    If nothing is being traced, the result is TensorFlow's default graph, to which eager operations
    are not added.
    """
    return tf.compat.v1.get_default_graph()


def of_unknown_shape(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """Returns a tensor with the same values, but with a less specific static shape.

    The graph then cannot treat as constants those dimensions that are None in the new static shape.

    Args:
        tensor: The tensor.
        shape: The static shape of the result, with None for each dimension that should be unknown.
    """
    return tf.compat.v1.placeholder_with_default(tensor, shape)
