"""Sequences without alignment: the CTC loss of Keras, and that of a layer which adds it."""

from typing import Any

import keras
import numpy as np
from keras import layers, ops

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


def test_the_ctc_loss_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(recognizer, frames(), labels())


def test_a_layer_that_adds_the_ctc_loss_trains_as_in_keras(as_in_keras: Any) -> None:
    as_in_keras(adding_recognizer, (frames(), labels()), replicas=[2])
