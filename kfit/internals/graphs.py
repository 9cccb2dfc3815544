"""TensorFlow 1 functions that TensorFlow 2 has only under `tf.compat.v1`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def current_graph() -> Any:
    """Returns the graph that is being traced.

    If nothing is being traced, it is a default graph that is not used.
    """
    return tf.compat.v1.get_default_graph()


def of_unknown_shape(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """Returns a tensor with the same values, but with a less specific static shape.

    So the graph cannot treat a dimension that is hidden here as a constant.

    Args:
        tensor: The tensor.
        shape: The static shape of the result, with None for each dimension to hide.
    """
    return tf.compat.v1.placeholder_with_default(tensor, shape)
