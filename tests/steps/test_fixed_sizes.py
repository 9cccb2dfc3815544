"""A program that counts on the size of its batches is told so where replicas get parts of them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only


class OfStaticSize(keras.Sequential):
    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((self(x) - y) ** 2) / x.shape[0]
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


class Noise(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return x * tf.random.normal((20, 1))


class Reshaping(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.reshape(tf.reshape(x, (20, 2, 2)), (20, 4))


def batches() -> Any:
    rows = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((rows[:, :4], rows[:, 4:]))
    return data.batch(20, drop_remainder=True)


def test_a_static_size_that_replicas_do_not_have(tiny: Any) -> None:
    model = OfStaticSize([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd")
    with pytest.raises(ValueError, match=r"2 replicas.*`x\.shape\[0\]`.*`tf\.shape\(x\)\[0\]`"):
        kfit.Trainer(model, tiny.strategy(2)).fit(batches(), verbose=0)


class EvaluatesByStaticSize(keras.Sequential):
    def test_step(self, data: Any) -> dict[str, Any]:
        return {"mean": tf.reduce_sum(self(data[0])) / tf.cast(data[0].shape[0], tf.float32)}


def test_a_static_size_that_a_step_takes_which_builds_what_compile_has(tiny: Any) -> None:
    model = EvaluatesByStaticSize([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    assert kfit.Trainer(model, "one_device").evaluate(batches(), verbose=0)
    with pytest.raises(ValueError, match=r"2 replicas.*`x\.shape\[0\]`.*`tf\.shape\(x\)\[0\]`"):
        kfit.Trainer(model, tiny.strategy(2)).evaluate(batches(), verbose=0)


class Product(keras.layers.Layer):
    """Of a matrix of the whole batch, as graph networks have, and the rows of a replica."""

    def call(self, x: Any) -> Any:
        return tf.matmul(tf.ones((20, 20)), x)


class WithBias(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.concat([x, tf.ones((20, 1))], axis=-1)


@pytest.mark.parametrize("layer", only([Product], [Noise, Reshaping, Product, WithBias]))
def test_a_number_that_is_the_size_of_a_whole_batch(tiny: Any, layer: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), layer(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"counts on batches of 20 examples.*such as 10 examples"):
        kfit.Trainer(model, tiny.strategy(2)).fit(batches(), verbose=0)


class OfPairs(keras.Sequential):
    """Takes batches whose first axis is a pair, as keras.io's metric learning does."""

    def train_step(self, data: Any) -> dict[str, Any]:
        anchors, positives = data[0], data[1]
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(anchors) - self(positives)) ** 2)
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def test_a_first_axis_that_is_not_the_examples(tiny: Any) -> None:
    model = OfPairs([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd")
    pairs = tf.data.Dataset.from_tensors(tf.random.normal((2, 10, 4))).repeat(3)
    with pytest.raises(ValueError, match=r"part 1 of a batch of 2 .* along its first axis"):
        kfit.Trainer(model, tiny.strategy(2)).fit(pairs, verbose=0)


@pytest.mark.long
def test_other_errors_stay_as_they_are(tiny: Any) -> None:
    model = keras.Sequential([keras.Input((4,)), Noise(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x, y = next(iter(batches()))
    with pytest.raises(tf.errors.InvalidArgumentError):
        kfit.Trainer(model, tiny.strategy(2)).fit(x[:6], y[:6], verbose=0)
