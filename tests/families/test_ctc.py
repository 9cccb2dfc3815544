"""Sequences without alignment: the CTC loss of Keras, and that of a layer which adds it."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.sweeps import only

STEPS, CLASSES = 8, 5


def frames() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(21, STEPS, 3)).astype("float32")


def labels() -> np.ndarray:
    """21 words of 1 to 3 letters, padded with 0."""
    draw = np.random.default_rng(1)
    letters = draw.integers(1, CLASSES, (21, 3)).astype("int32")
    letters[np.arange(3) >= draw.integers(1, 4, 21)[:, None]] = 0
    return letters


def recognizer() -> keras.Model:
    scores = layers.Dense(CLASSES)
    model = keras.Sequential([keras.Input((STEPS, 3)), layers.Conv1D(6, 3, padding="same"), scores])
    model.compile(keras.optimizers.SGD(0.05), keras.losses.CTC())
    return model


class AddsCtc(layers.Layer):
    """Adds the mean of the loss of its words, as in Keras' examples of recognition."""

    def call(self, labels: Any, scores: Any) -> Any:
        rows = ops.ones_like(labels[:, 0])
        lengths = ops.sum(ops.cast(labels > 0, "int32"), axis=1)
        self.add_loss(ops.mean(ops.ctc_loss(labels, scores, lengths, STEPS * rows)))
        return scores


def adding_recognizer() -> keras.Model:
    x, y = keras.Input((STEPS, 3)), keras.Input((3,), dtype="int32")
    scores = layers.Dense(CLASSES)(layers.Conv1D(6, 3, padding="same")(x))
    model = keras.Model([x, y], AddsCtc()(y, scores))
    model.compile(keras.optimizers.SGD(0.05))
    return model


def of_tensorflow(labels: Any, scores: Any) -> Any:
    """TensorFlow's own, with the axis of time first, as most programs call it."""
    rows = tf.shape(labels)[0]
    letters, lengths = tf.cast(labels, tf.int32), tf.reduce_sum(tf.cast(labels > 0, tf.int32), 1)
    by_time = tf.transpose(scores, [1, 0, 2])
    return tf.nn.ctc_loss(letters, by_time, lengths, tf.fill([rows], STEPS), blank_index=0)


def of_sparse_labels(labels: Any, scores: Any) -> Any:
    rows, by_time = tf.shape(labels)[0], tf.transpose(scores, [1, 0, 2])
    letters = tf.sparse.from_dense(tf.cast(labels, tf.int32))
    return tf.nn.ctc_loss(letters, by_time, None, tf.fill([rows], STEPS), blank_index=0)


def of_tf_keras(labels: Any, scores: Any) -> Any:
    """As Keras 2 computes it, which examples of optical character recognition still use."""
    rows = tf.shape(labels)[0]
    places = tf.where(tf.cast(labels, tf.int32) > 0)
    letters = tf.cast(tf.gather_nd(tf.cast(labels, tf.float32), places), tf.int32)
    letters = tf.minimum(letters, CLASSES - 2)  # the last class is no letter
    sparse = tf.SparseTensor(places, letters, tf.shape(labels, tf.int64))
    by_time = tf.math.log(tf.transpose(tf.nn.softmax(scores), [1, 0, 2]) + 1e-7)
    loss = tf.compat.v1.nn.ctc_loss(sparse, by_time, tf.fill([rows], STEPS))
    return tf.expand_dims(loss, 1)


@pytest.mark.parametrize(
    "loss", only([of_tf_keras], [of_tensorflow, of_sparse_labels, of_tf_keras])
)
def test_the_ctc_loss_of_tensorflow_is_exact_without_a_warning(as_in_keras: Any, loss: Any) -> None:
    def make() -> keras.Model:
        model = recognizer()
        model.compile(keras.optimizers.SGD(0.05), loss)
        return model

    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="What a loss")
        as_in_keras(make, frames(), labels(), replicas=[2])


@pytest.mark.long
def test_the_ctc_loss_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(recognizer, frames(), labels())


@pytest.mark.long  # other added losses are compared every day
def test_a_layer_that_adds_the_ctc_loss_trains_as_in_keras(as_in_keras: Any) -> None:
    as_in_keras(adding_recognizer, (frames(), labels()), replicas=[2])
