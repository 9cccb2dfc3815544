"""Numbers of batches with rows that are no examples, and of the number of rows."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from tests.exactness.cases.comparison import assert_equal_logs
from tests.exactness.cases.metric_functions import evaluated_on
from tests.sweeps import halves

pytestmark = pytest.mark.usefixtures("ungathered")

Function = Callable[[Any, Any], Any]
X = np.random.default_rng(0).random(size=(17, 4)).astype("float32")
Y = np.random.default_rng(1).random(size=(17, 4)).astype("float32")
IMAGES = np.random.default_rng(2).random(size=(7, 8, 8, 1)).astype("float32")
ZEROS, ONES = np.zeros((3, 4), "float32"), np.ones((3, 4), "float32")


def squares(y: Any, p: Any) -> Any:
    return (y - p) ** 2


def with_rows(rows: Any, values: Any) -> Any:
    return tf.concat([values, rows], 0)


def number(y: Any) -> Any:
    return tf.cast(tf.shape(y)[0], "float32")


EXACT: dict[str, Function] = {
    "sum_with_zeros": lambda y, p: tf.reduce_sum(with_rows(ZEROS, squares(y, p))),
    "sum_with_zeros_before": lambda y, p: tf.reduce_sum(
        squares(with_rows(ZEROS, y), with_rows(ZEROS, p))
    ),
    "sum_padded": lambda y, p: tf.reduce_sum(tf.pad(squares(y, p), [[1, 2], [0, 0]])),
    "mean_with_as_many": lambda y, p: tf.reduce_mean(tf.concat([squares(y, p), p], 0)),
    "mean_padded_within": lambda y, p: tf.reduce_mean(tf.pad(squares(y, p), [[0, 0], [1, 0]])),
    "mean_of_padded_images": lambda y, p: tf.reduce_mean(
        tf.image.pad_to_bounding_box(tf.reshape(squares(y, p), [-1, 1, 1, 4]), 1, 0, 4, 4)
    ),
    "mean_repeated": lambda y, p: tf.reduce_mean(tf.repeat(squares(y, p), 2, axis=0)),
    "sum_tiled": lambda y, p: tf.reduce_sum(tf.tile(squares(y, p), [2, 1])),
    "sum_scattered": lambda y, p: tf.reduce_mean(
        tf.scatter_nd(tf.argmax(y, 1)[:, None], squares(y, p), (4, 4))
    ),
    "sum_by_counted_ones": lambda y, p: (
        tf.reduce_sum(squares(y, p)) / tf.reduce_sum(tf.ones_like(p[:, 0]))
    ),
    "sum_by_number_and_tiny": lambda y, p: tf.reduce_sum(squares(y, p)) / (number(y) + 1e-7),
    "sum_by_column": lambda y, p: (
        tf.reduce_sum(squares(y, p)) / tf.cast(tf.shape(tf.transpose(p))[1], "float32")
    ),
    "mean_of_sizes": lambda y, p: tf.reduce_mean(
        tf.reduce_sum(squares(y, p), 1) / tf.cast(tf.reduce_prod(tf.shape(p)[1:]), "float32")
    ),
    "sum_by_sizes": lambda y, p: (
        tf.reduce_sum(squares(y, p)) / tf.cast(tf.reduce_prod(tf.shape(p)[1:]), "float32")
    ),
    "each_by_itself": lambda y, p: tf.vectorized_map(
        lambda rows: tf.reduce_sum(squares(*rows)), (y, p)
    ),
}
WARNED: dict[str, Function] = {
    "mean_with_zeros": lambda y, p: tf.reduce_mean(with_rows(ZEROS, squares(y, p))),
    "mean_with_ones_before": lambda y, p: tf.reduce_mean(tf.exp(-with_rows(ONES, p))),
    "sum_with_ones": lambda y, p: tf.reduce_sum(with_rows(ONES, squares(y, p))),
    "sum_of_exponents": lambda y, p: tf.reduce_sum(tf.exp(with_rows(ZEROS, p))),
    "mean_padded": lambda y, p: tf.reduce_mean(tf.pad(squares(y, p), [[1, 0], [0, 0]])),
    "mean_padded_to_size": lambda y, p: tf.reduce_mean(
        tf.pad(squares(y, p), [[0, 32 - tf.shape(p)[0]], [0, 0]])
    ),
    "mean_mirrored": lambda y, p: tf.reduce_mean(
        tf.pad(squares(y, p), [[1, 0], [0, 0]], "SYMMETRIC")
    ),
    "rows_with_zeros": lambda y, p: with_rows(ZEROS, squares(y, p)),
    "sum_by_padded_number": lambda y, p: (
        tf.reduce_sum(squares(y, p)) / number(tf.pad(p, [[1, 0], [0, 0]]))
    ),
    "sum_by_one_less": lambda y, p: tf.reduce_sum(squares(y, p)) / (number(y) - 1.0),
    "product_with_ones": lambda y, p: tf.reduce_mean(
        tf.matmul(with_rows(ONES, p), with_rows(ONES, y), transpose_a=True)
    ),
    "whole_mean": lambda y, p: tf.cast(tf.cast(tf.reduce_mean(p) * 10, "int32"), "float32"),
    "bins_of_any_number": lambda y, p: tf.reduce_mean(
        tf.math.bincount(tf.argmax(y, 1, tf.int32), weights=p[:, 0])
    ),
}
COMBINE: dict[str, Function] = {
    "pairs_by_tiles": lambda y, p: tf.reduce_mean(
        squares(tf.repeat(p, tf.shape(p)[0], axis=0), tf.tile(p, [tf.shape(p)[0], 1]))
    ),
    "pairs_by_broadcast": lambda y, p: tf.reduce_mean(
        squares(tf.broadcast_to(p[None], [tf.shape(p)[0], tf.shape(p)[0], 4]), p[:, None])
    ),
    "weights_of_places": lambda y, p: tf.reduce_mean(
        p * tf.range(tf.cast(tf.shape(p)[0], "float32"))[:, None]
    ),
    "the_first_one": lambda y, p: tf.reduce_sum(p[:, 0] * tf.one_hot(0, tf.shape(p)[0])),
}


evaluated = partial(evaluated_on, data=(X, Y), batch_size=10)


@pytest.mark.parametrize("functions", halves(EXACT))
def test_added_rows_that_change_nothing(tiny: Any, functions: dict[str, Function]) -> None:
    got, said = evaluated(functions, tiny.strategy(3))
    assert said == ""
    assert_equal_logs(got, evaluated(functions, None)[0])


@pytest.mark.long
@pytest.mark.parametrize("functions", halves(WARNED))
def test_added_rows_are_warned_of(tiny: Any, functions: dict[str, Function]) -> None:
    said = evaluated(functions, tiny.strategy(2))[1]
    found = {name for name in functions if f"'{name}' is given is neither" in said}
    assert found == set(functions)


@pytest.mark.long
def test_pairs_and_places_are_warned_of(tiny: Any) -> None:
    said = evaluated(COMBINE, tiny.strategy(2))[1]
    assert {name for name in COMBINE if f"'{name}' is given combines" in said} == set(COMBINE)


def test_a_loss_of_rows_beside_the_examples_is_warned_of(tiny: Any, recwarn: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4)])
    model.compile("sgd", WARNED["rows_with_zeros"])
    kfit.Trainer(model, tiny.strategy(2)).fit(X, Y, verbose=0)
    said = [str(each.message) for each in recwarn]
    assert any(each.startswith("What a loss returns is neither a mean") for each in said)


@pytest.mark.long
def test_similarity_of_images_is_of_each_example(tiny: Any) -> None:
    def of_all(y: Any, p: Any) -> Any:
        return 1 - tf.reduce_mean(of_each(y, p))

    def of_each(y: Any, p: Any) -> Any:
        return tf.image.ssim(y, p, 1.0, filter_size=3)

    def standardized(y: Any, p: Any) -> Any:
        return tf.reduce_mean(squares(*map(tf.image.per_image_standardization, (y, p))))

    def trained(fit: Callable[..., Any]) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((8, 8, 1)), layers.Conv2D(1, 1)])
        model.compile(keras.optimizers.SGD(0.1), of_all, metrics=[of_each, standardized])
        fit(model)(IMAGES, IMAGES[::-1], batch_size=5, shuffle=False, verbose=0)
        return model

    one = trained(lambda model: model.fit)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        several = trained(lambda model: kfit.Trainer(model, tiny.strategy(2)).fit)
    assert tiny.distance(one, several) < 1e-5
