"""Types of fewer bits: equal as far as these allow."""

from typing import Any

import keras
from keras import layers, optimizers

from tests.exactness.cases.data import regression
from tests.exactness.cases.models import sgd
from tests.exactness.cases.registry import case


@case
def mixed_float16(n: int) -> Any:
    hidden = layers.Dense(8, "tanh", dtype="mixed_float16")
    model = keras.Sequential([layers.Input((4,)), hidden, layers.Dense(2)])
    model.compile(optimizers.LossScaleOptimizer(sgd(momentum=0.5)), "mse")
    return model, regression(n)


@case
def mixed_bfloat16(n: int) -> Any:
    hidden = layers.Dense(8, "tanh", dtype="mixed_bfloat16")
    model = keras.Sequential([layers.Input((4,)), hidden, layers.Dense(2)])
    model.compile(sgd(), "mse", metrics=["mae"])
    return model, regression(n)
