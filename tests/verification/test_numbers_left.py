"""A model whose weights are lost is not called equal, and the first cause is named."""

from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.verification.numbers_left import without_numbers
from kfit.verification.runs import Result, _distance
from tests.sweeps import sweep

L = keras.layers


def data_with_nan(x: Any) -> Any:
    x = x.copy()
    x[20, 0] = np.nan
    return x


def weights_with_nan(model: Any) -> None:
    model.set_weights([np.full_like(weight, np.nan) for weight in model.get_weights()])


@pytest.mark.parametrize(
    ("change", "spoil", "rate", "says"),
    sweep(
        [
            (data_with_nan, None, 0.1, "The first cause: batch 2 of the data that were read"),
            (None, weights_with_nan, 0.1, "They are so before the first step"),
            (None, None, 1e30, "the training itself diverges"),
        ],
        every=3,
    ),
)
def test_nothing_is_left_to_compare(
    change: Any, spoil: Any, rate: float, says: str, tiny: Any
) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), L.Dense(3, activation="tanh"), L.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    if spoil is not None:
        spoil(model)
    x, _ = tiny.data(37)
    x = x if change is None else change(x)
    with pytest.raises(ValueError, match=rf"there is nothing to compare.*dense.*{says}"):
        kfit.Trainer(model, "one_device").verify(x, np.ones((37, 1)), batch_size=15, shuffle=False)


def test_logged_values_without_numbers() -> None:
    logs = {"a": np.array(np.nan), "b": np.array([np.inf, 1.0]), "c": np.array(3)}
    assert without_numbers(Result([], logs)) == ["a"]


def test_nan_and_infinity_are_equal_to_themselves_only() -> None:
    def distance(one: float, other: float) -> float:
        return _distance(np.array([one, 1.0]), np.array([other, 1.5]))

    assert distance(np.nan, np.nan) == distance(np.inf, np.inf) == 0.5
    assert distance(np.inf, -np.inf) == distance(np.nan, np.inf) == distance(1.0, np.nan) == np.inf
    assert _distance(np.array(np.nan), np.array(np.nan)) == 0.0
