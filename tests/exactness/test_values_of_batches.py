"""Losses and metrics that are vectors of a batch, as of sums along the axis of the examples."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.exactness.cases.comparison import assert_equal_logs
from tests.sweeps import sweep

pytestmark = pytest.mark.usefixtures("ungathered")

Function = Callable[[Any, Any], Any]
X = np.random.default_rng(0).normal(size=(17, 4)).astype("float32")
Y = np.random.default_rng(1).random(size=(17, 4)).astype("float32")
OPTIONS: dict[str, Any] = {"batch_size": 10, "shuffle": False, "verbose": 0}


def squares(y: Any, p: Any) -> Any:
    return tf.math.squared_difference(y, p)


def number(y: Any) -> Any:
    return tf.cast(tf.shape(y)[0], "float32")


EXACT: dict[str, Function] = {
    "sum": lambda y, p: 0.1 * tf.reduce_sum(squares(y, p), 0),
    "sum_of_one_row": lambda y, p: 0.1 * tf.reduce_sum(squares(y, p), 0, keepdims=True),
    "sum_weighted": lambda y, p: tf.reduce_sum(squares(y, p), 0) * tf.constant([0.1, 0.2, 0, 0.3]),
    "sum_by_number": lambda y, p: tf.reduce_sum(squares(y, p), 0) / number(y),
    "mean": lambda y, p: ops.mean(squares(y, p), axis=0),
    "mean_and_constant": lambda y, p: tf.reduce_mean(squares(y, p), 0) + tf.range(4.0),
    "sum_and_mean": lambda y, p: (
        0.1 * tf.reduce_sum(squares(y, p), 0) + tf.reduce_mean(squares(y, p), 0)
    ),
    "some_sums": lambda y, p: 0.1 * tf.gather(tf.reduce_sum(squares(y, p), 0), [1, 3]),
    "product": lambda y, p: 0.1 * tf.matmul(y - p, y - p, transpose_a=True),
    "means": lambda y, p: tf.stack([tf.reduce_mean(squares(y, p)), tf.reduce_mean(p)]),
    "mean_and_sum": lambda y, p: tf.stack(
        [tf.reduce_mean(squares(y, p)), 0.1 * tf.reduce_sum(p), tf.constant(2.0)]
    ),
    "one_mean": lambda y, p: tf.reduce_mean(squares(y, p))[None],
    "repeated_mean": lambda y, p: tf.repeat(tf.reduce_mean(squares(y, p)), 3),
    "of_classes": lambda y, p: (
        0.1 * tf.math.unsorted_segment_sum(squares(y, p)[:, 0], tf.argmax(y, 1), 4)
    ),
    "columns": lambda y, p: 0.1 * tf.transpose(squares(y, p)),
    "squares_of_columns": lambda y, p: squares(tf.transpose(y), tf.transpose(p)),
    "mean_for_each": lambda y, p: tf.ones_like(p[:, 0]) * tf.reduce_mean(squares(y, p)),
    "filled_with_mean": lambda y, p: tf.fill([tf.shape(p)[0]], tf.reduce_mean(squares(y, p))),
    "mean_added_to_each": lambda y, p: p[:, 0] + tf.reduce_mean(squares(y, p)),
    "sum_of_filled": lambda y, p: (
        0.1 * tf.reduce_sum(tf.fill([tf.shape(p)[0], 2], tf.reduce_mean(squares(y, p))))
    ),
}
WARNED: dict[str, Function] = {
    "largest": lambda y, p: tf.reduce_max(squares(y, p), 0),
    "root_of_mean": lambda y, p: tf.sqrt(tf.reduce_mean(squares(y, p), 0)),
    "square_of_mean": lambda y, p: tf.reduce_mean(y - p, 0) ** 2,
    "deviation": lambda y, p: tf.math.reduce_std(y - p, 0),
    "logarithm_of_sum": lambda y, p: tf.math.log(tf.reduce_sum(tf.exp(p), 0)),
}
WHOLE_NUMBERS: dict[str, Function] = {
    "positive": lambda y, p: tf.reduce_sum(tf.cast(p > 0, tf.int32)),
    "nonzero": lambda y, p: tf.math.count_nonzero(p > 0),
    "examples": lambda y, p: tf.shape(p)[0],
    "positive_of_each": lambda y, p: tf.reduce_sum(tf.cast(p > 0, tf.int32), 0),
    "examples_and_three": lambda y, p: tf.stack([tf.shape(p)[0], 3]),
    "constants": lambda y, p: tf.constant([1, 2]),
    "flag": lambda y, p: tf.constant(True),
    "rows": lambda y, p: tf.cast(p > 0, tf.int32),
    "flags": lambda y, p: p[:, 0] > 0,
}
OTHER_WHOLE_NUMBERS: dict[str, Function] = {
    "cut_mean": lambda y, p: tf.reduce_mean(tf.cast(10 * p, tf.int32)),
    "cut_means": lambda y, p: tf.reduce_mean(tf.reduce_sum(tf.cast(p > 0, tf.int32), 0)),
    "largest": lambda y, p: tf.reduce_max(tf.cast(10 * p, tf.int32)),
    "any": lambda y, p: tf.reduce_any(p > 0),
}


class Wrapped(keras.losses.Loss):
    def __init__(self, function: Function, reduction: Any) -> None:
        super().__init__(reduction=reduction)
        self.function = function

    def call(self, y_true: Any, y_pred: Any) -> Any:
        return self.function(y_true, y_pred)


class Added(layers.Layer):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def call(self, x: Any) -> Any:
        self.add_loss(self.function(tf.ones_like(x), x))
        return x


class AddsUp(keras.metrics.Sum):
    """A sum of what a function returns."""

    def __init__(self, function: Function, name: str) -> None:
        super().__init__(name=name)
        self.function = function

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> Any:
        return super().update_state(self.function(y, p))


def of_losses(functions: dict[str, Function], reduction: str | None) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    model = keras.Model(x, {name: layers.Dense(4, name=name)(x) for name in functions})
    losses = {name: Wrapped(function, reduction) for name, function in functions.items()}
    model.compile(keras.optimizers.SGD(0.02), losses)
    return model


def of_added(functions: dict[str, Function], reduction: str | None) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = layers.Input((4,))
    model = keras.Model(x, {n: Added(f)(layers.Dense(4)(x)) for n, f in functions.items()})
    model.compile(keras.optimizers.SGD(0.02), dict.fromkeys(functions, "mse"))
    return model


OF_ONE_SHAPE = {
    name: EXACT[name] for name in ("sum", "mean", "sum_and_mean", "mean_and_constant", "of_classes")
}
"""What Keras can add up without a reduction."""
SOME, OTHERS = ({name: EXACT[name] for name in list(EXACT)[first::2]} for first in (0, 1))
"""The daily test takes the first half as losses."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "functions", "reduction"),
    sweep(
        [
            (of_losses, SOME, "sum"),
            (of_losses, OTHERS, "sum"),
            (of_losses, EXACT, "sum_over_batch_size"),
            (of_added, EXACT, None),
            (of_losses, OF_ONE_SHAPE, None),
        ],
        every=5,
    ),
)
def test_losses_that_are_vectors_of_the_batch(
    tiny: Any, make: Any, functions: dict[str, Function], reduction: str | None
) -> None:
    one, several = make(functions, reduction), make(functions, reduction)
    targets = dict.fromkeys(functions, Y)
    expected = one.fit(X, targets, **OPTIONS).history
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        got = kfit.Trainer(several, tiny.strategy(3)).fit(X, targets, **OPTIONS).history
    assert tiny.distance(one, several) < 1e-5
    np.testing.assert_allclose(got["loss"], expected["loss"], rtol=1e-5)


def mean_of(y: Any, p: Any) -> Any:
    return tf.reduce_mean(squares(y, p))


def sum_of(y: Any, p: Any) -> Any:
    return tf.reduce_sum(squares(y, p))


WEIGHTED: dict[str, tuple[Function, Function]] = {
    "mean_by_number": (mean_of, lambda y, p: tf.shape(y)[0]),
    "mean_by_two": (mean_of, lambda y, p: 2.0),
    "mean_by_inverse": (mean_of, lambda y, p: 1 / number(y)),
    "sum_by_number": (sum_of, lambda y, p: number(y)),
    "means_by_features": (EXACT["mean"], lambda y, p: tf.range(4.0)),
    "sums_by_two": (EXACT["sum"], lambda y, p: tf.constant(2.0)),
    "constant_by_sum": (lambda y, p: 3.0, sum_of),
    "number_by_mean": (lambda y, p: number(y), mean_of),
    "values_by_two": (lambda y, p: squares(y, p), lambda y, p: 2.0),
    "values_by_number": (lambda y, p: squares(y, p), lambda y, p: number(y)),
    "values_by_values": (lambda y, p: squares(y, p), lambda y, p: y[:, 0]),
}
OTHERS_WEIGHTED: dict[str, tuple[Function, Function]] = {
    "mean_by_largest": (mean_of, lambda y, p: tf.reduce_max(y)),
    "mean_by_sum": (mean_of, sum_of),
    "values_by_sum": (lambda y, p: squares(y, p), sum_of),
}


class Weighted(keras.metrics.Metric):
    """Has Keras' metric take what a function returns, weighted by what another one does."""

    def __init__(self, values: Function, weight: Function, name: str) -> None:
        super().__init__(name=name)
        self.values, self.weight = values, weight

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> Any:
        return super().update_state(self.values(y, p), sample_weight=self.weight(y, p))


class MeanOf(Weighted, keras.metrics.Mean):
    """A weighted mean."""


class SumOf(Weighted, keras.metrics.Sum):
    """A weighted sum."""


def of_weighted(functions: dict[str, tuple[Function, Function]]) -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), layers.Rescaling(0.5)])
    means = [MeanOf(*both, name) for name, both in functions.items()]
    sums = [SumOf(*both, f"{name}_added_up") for name, both in functions.items()]
    model.compile("sgd", "mse", metrics=[*means, *sums])
    return model


@pytest.mark.long
def test_metrics_with_one_weight_for_the_batch(tiny: Any) -> None:
    expected = of_weighted(WEIGHTED).evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)
    trainer = kfit.Trainer(of_weighted(WEIGHTED), tiny.strategy(3))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        got = trainer.evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)
    assert_equal_logs(got, expected)


def test_weights_that_no_replica_knows_are_warned_of(tiny: Any, recwarn: Any) -> None:
    kfit.Trainer(of_weighted(OTHERS_WEIGHTED), tiny.strategy(2)).evaluate(X, Y, verbose=0)
    said = " ".join(str(each.message) for each in recwarn)
    names = OTHERS_WEIGHTED.keys() | {f"{name}_added_up" for name in OTHERS_WEIGHTED}
    assert {each for each in names if f"'{each}' is given and its `sample_weight`" in said} == names


def of_metrics(functions: dict[str, Function]) -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    means = [keras.metrics.MeanMetricWrapper(f, name=name) for name, f in functions.items()]
    sums = [AddsUp(function, f"{name}_added_up") for name, function in functions.items()]
    model.compile("sgd", "mse", metrics=[*means, *sums])
    return model


FEW = {name: {**EXACT, **WHOLE_NUMBERS}[name] for name in ("of_classes", "positive", "rows")}


@pytest.mark.parametrize(
    "functions",
    [
        pytest.param(SOME, id="some_floats", marks=pytest.mark.long),
        pytest.param(OTHERS, id="other_floats", marks=pytest.mark.long),
        pytest.param(WHOLE_NUMBERS, id="whole_numbers", marks=pytest.mark.long),
        pytest.param(FEW, id="few"),
    ],
)
def test_metrics_of_values_of_the_batch(tiny: Any, functions: dict[str, Function]) -> None:
    expected = of_metrics(functions).evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)
    trainer = kfit.Trainer(of_metrics(functions), tiny.strategy(3))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        got = trainer.evaluate(X, Y, batch_size=10, verbose=0, return_dict=True)
    assert_equal_logs(got, expected)


@pytest.mark.parametrize(
    "functions", sweep([WARNED, OTHER_WHOLE_NUMBERS]), ids=["floats", "whole_numbers"]
)
def test_other_values_of_the_batch_are_warned_of(
    tiny: Any, recwarn: Any, functions: dict[str, Function]
) -> None:
    kfit.Trainer(of_metrics(functions), tiny.strategy(2)).evaluate(X, Y, verbose=0)
    said = " ".join(str(each.message) for each in recwarn)
    names = {each for name in functions for each in (name, f"{name}_added_up")}
    assert {name for name in names if f"'{name}' is given is neither" in said} == names


@pytest.mark.long
@pytest.mark.parametrize("name", ["largest", "root_of_mean"])
def test_a_loss_of_another_vector_is_warned_of(tiny: Any, name: str) -> None:
    model = of_losses({name: WARNED[name]}, "sum")
    with pytest.warns(UserWarning, match="What a loss returns is neither a mean nor a sum"):
        kfit.Trainer(model, tiny.strategy(2)).fit(X, {name: Y}, **OPTIONS)


@pytest.mark.parametrize(
    "weights", [pytest.param(None, marks=pytest.mark.long), np.linspace(0, 1, 17)]
)
def test_a_mean_that_is_added_to_weighted_values_is_warned_of(tiny: Any, weights: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    model.compile("sgd", EXACT["mean_added_to_each"])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfit.Trainer(model, tiny.strategy(2)).fit(X, Y, sample_weight=weights, **OPTIONS)
    said = [str(each.message) for each in caught]
    assert any("combines the examples" in each for each in said) == (weights is not None)


@pytest.mark.long
def test_one_value_of_a_batch_of_masked_predictions(tiny: Any) -> None:
    def loss(y: Any, p: Any) -> Any:
        return tf.reduce_mean(squares(y, p))

    def trained(fit: Callable[..., Any]) -> keras.Model:
        keras.utils.set_random_seed(1)
        embedding = layers.Embedding(5, 4, mask_zero=True)
        model = keras.Sequential([keras.Input((7,)), embedding, layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.1), loss)
        words = np.random.default_rng(3).integers(0, 5, (17, 7))
        fit(model)(words, np.ones((17, 7, 2), "float32"), **OPTIONS)
        return model

    one = trained(lambda model: model.fit)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        several = trained(lambda model: kfit.Trainer(model, tiny.strategy(3)).fit)
    assert tiny.distance(one, several) < 1e-5
