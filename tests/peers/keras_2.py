"""What Keras 2 called otherwise, under its old name in Keras 3, while tf_keras' tests run."""

import contextlib
from collections.abc import Iterator
from typing import Any


class Reduction:
    """How a loss is reduced, by the names that Keras 2 has for it."""

    AUTO = SUM_OVER_BATCH_SIZE = "sum_over_batch_size"
    SUM = "sum"
    NONE = "none"


OPTIMIZERS = {
    "AdagradOptimizer": "Adagrad",
    "AdamOptimizer": "Adam",
    "FtrlOptimizer": "Ftrl",
    "GradientDescentOptimizer": "SGD",
    "RMSPropOptimizer": "RMSprop",
}
"""Optimizers of TensorFlow 1, which Keras 2 took, and those of Keras 3 that compute the same."""


def rename() -> None:
    """Adds the old names to Keras' classes and to TensorFlow."""
    import keras
    import tensorflow as tf

    for train in (tf.compat.v1.train, tf.compat.v2.compat.v1.train):
        for old, new in OPTIMIZERS.items():
            setattr(train, old, getattr(keras.optimizers, new))
    keras.optimizers.Optimizer.lr = property(lambda optimizer: optimizer.learning_rate)
    keras.Model.build = _build
    keras.layers.Layer.add_weight = _named_first(keras.layers.Layer.add_weight)
    keras.metrics.Metric.reset_states = keras.metrics.Metric.reset_state


@contextlib.contextmanager
def policy_scope(policy: Any) -> Iterator[None]:
    """Sets the policy of layers for as long as it lasts."""
    import keras

    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def make_input(shape: Any = None, *args: Any, **kwargs: Any) -> Any:
    """An input of a functional model; the shape of one with one axis may be a number."""
    import keras

    return keras.Input((shape,) if isinstance(shape, int) else shape, *args, **kwargs)


def get_value(variable: Any) -> Any:
    """The value of a variable as an array."""
    import numpy as np

    return np.array(variable)


def set_value(variable: Any, value: Any) -> None:
    """Gives a variable a value."""
    variable.assign(value)


def _build(model: Any, input_shape: Any) -> None:
    """Makes the weights of a subclassed model; Keras 3 makes them at its first call alone."""
    import keras

    if not model.built and not model.variables:
        model.compute_output_spec(keras.KerasTensor(input_shape))


_build._is_default = True  # type: ignore[attr-defined]  # how Keras knows that a model's is its own


def _named_first(add_weight: Any) -> Any:
    """Keras 2's, whose first argument is the name, and whose shape may be a number."""

    def add(layer: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], str):
            kwargs["name"], args = args[0], args[1:]
        if isinstance(kwargs.get("shape"), int):
            kwargs["shape"] = (kwargs["shape"],)
        return add_weight(layer, *args, **kwargs)

    return add
