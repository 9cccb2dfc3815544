"""A variable whose `aggregation` does not fit what a step assigns to it is named in a warning."""

import re
import warnings
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import kfit
from tests.sweeps import only


class Keeps(layers.Layer):
    """Keeps what a function makes of the value before and the examples."""

    def __init__(self, change: Any, aggregation: str) -> None:
        super().__init__(name="keeps")
        self.change, self.aggregation = change, aggregation

    def build(self, shape: Any) -> None:
        self.kept = self.add_weight(
            (4,), "ones", trainable=False, aggregation=self.aggregation, name="kept"
        )

    def call(self, x: Any) -> Any:
        self.kept.assign(self.change(self.kept, x))
        return x


MEANS = {
    "moving average": lambda kept, x: 0.9 * kept + 0.1 * ops.mean(x, axis=0),
    "of squares": lambda kept, x: kept + 0.1 * (ops.mean(x**2, axis=0) - kept),
    "sum over number": lambda kept, x: ops.sum(x, axis=0) / ops.cast(ops.shape(x)[0], x.dtype),
    "equal on all": lambda kept, x: 0.5 * kept + 1.0,
}
NO_MEANS = {
    "clipped": lambda kept, x: ops.clip(kept + ops.mean(ops.sign(x), axis=0) / 10, 0.0, 1.0),
    "root": lambda kept, x: ops.sqrt(ops.mean(x**2, axis=0)),
    "maximum": lambda kept, x: ops.maximum(kept, ops.max(x, axis=0)),
    "variance": lambda kept, x: 0.9 * kept + 0.1 * ops.var(x, axis=0),
}
SUMS = {
    "sum": lambda kept, x: kept + ops.sum(x, axis=0),
    "number": lambda kept, x: kept + ops.cast(ops.shape(x)[0], x.dtype),
    "frequencies": lambda kept, x: kept + ops.sum(ops.one_hot(ops.argmax(x, -1), 4), axis=0),
}
NO_SUMS = {
    "decay": lambda kept, x: 0.9 * kept + ops.sum(x, axis=0),
    "step": lambda kept, x: kept + 1.0,
    "mean": lambda kept, x: kept + ops.mean(x, axis=0),
}
WRONG = [("mean", NO_MEANS[name]) for name in NO_MEANS] + [("sum", f) for f in NO_SUMS.values()]
RIGHT = [("mean", MEANS[name]) for name in MEANS] + [("sum", f) for f in SUMS.values()]


def trained(aggregation: str, change: Any, strategy: Any) -> tuple[Any, list[str]]:
    """What the layer keeps in the end, and the warnings of its declaration."""
    keras.utils.set_random_seed(1)
    keeps = Keeps(change, aggregation)
    model = keras.Sequential([keras.Input((4,)), keeps, layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(2).normal(size=(13, 4)).astype("float32")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfit.Trainer(model, strategy).fit(x, x[:, :1], batch_size=8, shuffle=False, verbose=0)
    told = [str(each.message) for each in caught if "is declared" in str(each.message)]
    return keeps.kept.numpy(), told


@pytest.mark.parametrize(("aggregation", "change"), only(RIGHT[:2] + RIGHT[-1:], RIGHT))
def test_what_fits_is_that_of_one_device_without_a_warning(
    tiny: Any, aggregation: str, change: Any
) -> None:
    expected, _ = trained(aggregation, change, "one_device")
    got, told = trained(aggregation, change, tiny.strategy(2))
    np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert not told


@pytest.mark.parametrize(("aggregation", "change"), only([WRONG[0], WRONG[-3]], WRONG))
def test_what_does_not_fit_is_warned_of_by_name(tiny: Any, aggregation: str, change: Any) -> None:
    _, told = trained(aggregation, change, tiny.strategy(2))
    assert len(set(told)) == 1
    says = (
        rf"The variable '\S*keeps/kept' of Keeps 'keeps' is declared `aggregation='{aggregation}'`"
    )
    assert re.match(says, told[0])
    assert "all_reduce" in told[0]
    assert not trained(aggregation, change, "one_device")[1]


class Counts(layers.Layer):
    """Counts steps in a variable of integers that is declared a mean."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight(
            (), "zeros", trainable=False, dtype="int32", aggregation="mean", name="steps"
        )

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps.assign_add(1)
        return x


@pytest.mark.parametrize("built", [True, False])
def test_integers_may_be_declared_a_mean(tiny: Any, built: bool) -> None:
    counts = Counts()
    inputs = [keras.Input((4,))] if built else []
    model = keras.Sequential([*inputs, counts, layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.ones((13, 4), np.float32)
    for _ in range(2):
        kfit.Trainer(model, tiny.strategy(2)).fit(x, x[:, :1], batch_size=4, verbose=0)
    assert counts.steps.numpy() == 8
