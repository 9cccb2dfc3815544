"""Small models that many cases are made of."""

from typing import Any

import keras
from keras import layers, optimizers


def sgd(**options: Any) -> optimizers.Optimizer:
    return optimizers.SGD(0.2, **options)


def regressor(optimizer: Any = None, **compiled: Any) -> keras.Model:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(6, "tanh"), layers.Dense(2)])
    compiled = {"loss": "mse", "metrics": ["mae"], **compiled}
    model.compile(sgd() if optimizer is None else optimizer, **compiled)
    return model


def heads(outputs: dict[str, Any], **compiled: Any) -> keras.Model:
    """Independent outputs, so that a wrong gradient shows in its own head."""
    x = layers.Input((4,))
    model = keras.Model(x, {name: layers.Dense(2, name=name)(x) for name in outputs})
    model.compile(sgd(), loss=outputs, **compiled)
    return model
