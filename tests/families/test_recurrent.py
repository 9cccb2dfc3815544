"""Recurrent networks on sequences of several lengths, whose padding is masked."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tests.sweeps import sweep

WORDS, CLASSES = 12, 3


def sentences(length: int = 7) -> np.ndarray:
    """21 sentences of 1 to `length` words, padded with 0."""
    draw = np.random.default_rng(0)
    words = draw.integers(1, WORDS, (21, length))
    words[np.arange(length) >= draw.integers(1, length + 1, 21)[:, None]] = 0
    return words


def classes(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, CLASSES, shape)


def classifier(*recurrent: Any) -> keras.Model:
    embedding = layers.Embedding(WORDS, 4, mask_zero=True)
    model = keras.Sequential([keras.Input((None,)), embedding, *recurrent, layers.Dense(CLASSES)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=["accuracy"])
    return model


@pytest.mark.long
@pytest.mark.parametrize("replicas", sweep([2, 1]))
def test_masked_sentences_are_classified_as_in_keras(as_in_keras: Any, replicas: int) -> None:
    as_in_keras(lambda: classifier(layers.LSTM(5)), sentences(), classes(21), replicas=[replicas])


@pytest.mark.long  # the classifier of masked sentences is trained every day
def test_both_directions_label_each_word_as_in_keras(as_in_keras: Any) -> None:
    """The mask leaves padding out of the loss, whose mean is that of the words of all replicas."""

    def labeler() -> keras.Model:
        return classifier(layers.Bidirectional(layers.GRU(4, return_sequences=True)))

    as_in_keras(labeler, sentences(), classes(21, 7), replicas=[2])


@pytest.mark.long  # as above
def test_masked_series_are_continued_as_in_keras(as_in_keras: Any) -> None:
    series = np.random.default_rng(2).normal(size=(21, 6, 2)).astype("float32")
    series[::3, 4:] = 0.0

    def forecaster() -> keras.Model:
        model = keras.Sequential([keras.Input((6, 2)), layers.Masking(), layers.LSTM(4)])
        model.add(layers.Dense(2))
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
        return model

    as_in_keras(forecaster, series, series[:, 0], replicas=[2])
