"""What is read from a model: its weights by their paths, and what its optimizer says."""

import keras
import numpy as np
import pytest

from kfit.callbacks.model_readings import learning_rates, steps_taken, weights_by_path


def test_weights_of_one_path_and_shared_weights() -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.first, self.second = (keras.layers.Dense(1, name="same") for _ in range(2))
            self.again = self.first

        def call(self, x: object) -> object:
            return self.again(self.second(self.first(x)))

    model = Own()
    model(np.ones((1, 1)))
    found = weights_by_path(model, None)
    assert list(found) == [
        *("own/same/kernel", "own/same/bias", "own/same/kernel_2", "own/same/bias_2")
    ]
    for weight, value in zip(model.weights, found.values(), strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)


def test_learning_rates() -> None:
    optimizers = keras.optimizers
    decay = optimizers.schedules.ExponentialDecay(0.5, 10, 0.1)
    assert learning_rates(optimizers.SGD(0.25)) == {"learning_rate": 0.25}
    assert learning_rates(optimizers.SGD(decay)) == {"learning_rate": 0.5}
    scaled = optimizers.LossScaleOptimizer(optimizers.SGD(0.25))
    assert learning_rates(scaled) == {"learning_rate": 0.25}
    assert learning_rates(None) == {}


@pytest.mark.parametrize("accumulation", [None, 4])
def test_steps_taken(accumulation: int | None) -> None:
    optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=accumulation)
    variable = keras.Variable([1.0])
    optimizer.build([variable])
    for _ in range(8):
        optimizer.apply([keras.ops.ones((1,))], [variable])
    assert steps_taken(optimizer) == 8
    assert steps_taken(None) == 0
