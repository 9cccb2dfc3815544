"""Losses that layers and regularizers add, and layers in which the replicas meet."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, losses, ops, regularizers

from tests.exactness.cases.data import labels, numbers, positive, regression
from tests.exactness.cases.models import sgd
from tests.exactness.cases.registry import case


class AddsLoss(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(loss=0.3 * ops.mean(ops.square(x)))
        return x


@case
def added_loss(n: int) -> Any:
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4, "tanh"), AddsLoss(), layers.Dense(2)]
    )
    model.compile(sgd(), "mse")
    return model, regression(n)


class AddsValues(layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.05 * ops.sum(ops.square(x), axis=-1))
        self.add_loss(0.05 * ops.mean(ops.square(x), axis=0))
        return x


@case
def added_values_of_examples(n: int) -> Any:
    """Keras adds up what is no scalar: over examples, or over features of their mean."""
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3, "tanh"), AddsValues()])
    model.add(layers.Dense(2))
    model.compile(sgd(), "mse")
    return model, regression(n)


class MeetsByItself(layers.Layer):
    """Centers rows by the mean of all, and looks at all of them."""

    def call(self, x: Any) -> Any:
        context = tf.distribute.get_replica_context()
        if context is None:  # built outside of the replicas
            return x
        rows = tf.cast(tf.shape(x)[0], x.dtype)
        mean = context.all_reduce("SUM", tf.reduce_sum(x, 0)) / context.all_reduce("SUM", rows)
        everything = tf.stop_gradient(context.all_gather(x, 0))
        likeness = tf.matmul(x, everything, transpose_b=True)
        return x - mean + 0.1 * tf.reduce_logsumexp(likeness, 1, keepdims=True)


@case
def layers_that_meet_by_themselves(n: int) -> Any:
    model = keras.Sequential(
        [layers.Input((4,)), layers.Dense(4), MeetsByItself(), layers.Dense(2)]
    )
    model.compile(sgd(), "mse", metrics=["mae"])
    return model, regression(n)


class UnscaledStep(keras.Sequential):
    """Takes gradients of its loss as most do, without `optimizer.scale_loss`."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return self.compute_metrics(x, y, y_pred)


@case
def unscaled_step_where_replicas_meet(n: int) -> Any:
    """Replicas of 6 and 7 examples owe gradients to each other."""
    normalized = layers.BatchNormalization(synchronized=True)
    model = UnscaledStep([layers.Input((4,)), layers.Dense(4), normalized, layers.Dense(3)])
    model.add(layers.Softmax())
    model.compile(sgd(), losses.Dice(), metrics=["mae"])
    return model, (numbers(n, 4), np.eye(3, dtype="float32")[labels(n, 3)])


@case
def added_loss_before_replicas_meet(n: int) -> Any:
    """They meet in the normalization, and again in the loss, before the added one is read."""
    hidden = [layers.Dense(4, "tanh", activity_regularizer="l2"), AddsLoss()]
    # Of a batch of one example the usual epsilon would magnify what is rounded 30 times.
    normalized = layers.BatchNormalization(synchronized=True, epsilon=0.1)
    model = keras.Sequential([layers.Input((4,)), *hidden, normalized, layers.Dense(2)])
    model.compile(sgd(), losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    return model, regression(n), {"sample_weight": positive(n)}


@case
def weight_and_activity_regularizers(n: int) -> Any:
    first = layers.Dense(
        4,
        kernel_regularizer=regularizers.L1L2(0.01, 0.02),
        bias_regularizer=regularizers.L2(0.03),
        activity_regularizer=regularizers.L2(0.05),
    )
    model = keras.Sequential([layers.Input((4,)), first, layers.Dense(2)])
    model.compile(sgd(), "mse")
    return model, regression(n)
