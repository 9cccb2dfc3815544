"""Gradients of a step's own loss, where what TensorFlow passes backwards matters."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from tests.sweeps import only

X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 1)).astype("float32")


@tf.custom_gradient
def clipped(x: Any) -> Any:
    return tf.identity(x), lambda grad: tf.clip_by_value(grad, -0.05, 0.05)


@tf.custom_gradient
def shortened(x: Any) -> Any:
    return tf.identity(x), lambda grad: grad / (tf.abs(grad) + 0.1)


def centered(x: Any) -> Any:
    """Subtracts the mean over the examples of all replicas, with a gradient that is not linear."""
    replica = tf.distribute.get_replica_context()
    total, number = tf.reduce_sum(x, 0), tf.cast(tf.shape(x)[0], x.dtype)
    if replica is not None and replica.num_replicas_in_sync > 1:
        total, number = replica.all_reduce("sum", total), replica.all_reduce("sum", number)
    return shortened(x - total / number)


def mean(errors: Any) -> Any:
    return tf.reduce_mean(errors)


def total(errors: Any) -> Any:
    return tf.reduce_sum(errors)


def both(errors: Any) -> Any:
    return tf.reduce_mean(errors) + 0.3 * tf.reduce_sum(errors)


def for_each(errors: Any) -> Any:
    return errors


class Steps(keras.Model):
    """Computes its loss by itself, without `scale_loss`."""

    def __init__(self, change: Callable[[Any], Any], loss: Callable[[Any], Any]) -> None:
        super().__init__()
        self._inner, self._outer = layers.Dense(3), layers.Dense(1)
        self._change, self._own_loss = change, loss

    def call(self, x: Any) -> Any:
        return self._outer(self._change(self._inner(x)))

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            errors = tf.reduce_sum((self(x, training=True) - y) ** 2, -1)
            loss = self._own_loss(errors)
        variables = self.trainable_variables
        self.optimizer.apply(self.changed(tape.gradient(loss, variables)), variables)
        return {"own": tf.reduce_mean(errors)}

    def changed(self, grads: list[Any]) -> list[Any]:
        return grads


class Clips(Steps):
    """Clips what the tape returns."""

    def changed(self, grads: list[Any]) -> list[Any]:
        return [tf.clip_by_norm(grad, 0.1) for grad in grads]


@pytest.mark.parametrize(
    ("kind", "change", "loss"),
    only(
        [(Steps, clipped, mean), (Steps, shortened, for_each)],
        [
            (Steps, clipped, mean),
            (Steps, shortened, both),
            (Steps, shortened, for_each),
            (Steps, centered, mean),
            (Steps, centered, total),
            (Clips, centered, both),
        ],
    ),
)
def test_gradient_functions_get_what_they_get_on_one_device(
    kind: type[Steps], change: Callable[[Any], Any], loss: Callable[[Any], Any]
) -> None:
    """The last batch is a part of one, so that the replicas have different shares of it."""

    def trained(strategy: Any) -> tuple[list[Any], list[float]]:
        keras.utils.set_random_seed(1)
        model = kind(change, loss)
        model.compile(keras.optimizers.SGD(0.1))
        trainer = kfit.Trainer(model, strategy)
        history = trainer.fit(X, Y, batch_size=7, epochs=2, shuffle=False, verbose=0)
        return model.get_weights(), history.history["own"]

    weights, logs = trained("one_device")
    of_two, logs_of_two = trained(kfit.distribute.Mirrored(["CPU:0", "CPU:1"]))
    for weight, other in zip(weights, of_two, strict=True):
        np.testing.assert_allclose(other, weight, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(logs_of_two, logs, rtol=2e-5)
