"""Small transformers: an encoder of masked sentences, and a decoder that predicts the next word."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

from tests.sweeps import only

WORDS, LENGTH, WIDTH = 12, 6, 8


class Embeds(layers.Layer):
    """Adds the embeddings of words and of their positions, and masks the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words = layers.Embedding(WORDS, WIDTH, mask_zero=True)
        self.positions = layers.Embedding(LENGTH, WIDTH)

    def call(self, words: Any) -> Any:
        return self.words(words) + self.positions(ops.arange(ops.shape(words)[-1]))

    def compute_mask(self, words: Any, mask: Any = None) -> Any:
        return self.words.compute_mask(words)


class Block(layers.Layer):
    """Attention and two dense layers, each beside a shortcut."""

    def __init__(self, causal: bool, dropout: float) -> None:
        super().__init__()
        self.supports_masking, self.causal = True, causal
        self.attention = layers.MultiHeadAttention(2, 4, dropout=dropout)
        self.dense = [layers.Dense(16, "relu"), layers.Dense(WIDTH)]
        self.norms = [layers.LayerNormalization(), layers.LayerNormalization()]
        self.dropout = layers.Dropout(dropout)

    def call(self, x: Any) -> Any:
        attended = self.attention(x, x, use_causal_mask=self.causal)
        x = self.norms[0](x + self.dropout(attended))
        return self.norms[1](x + self.dropout(self.dense[1](self.dense[0](x))))


def transformer(causal: bool, dropout: float = 0.0) -> keras.Model:
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Block(causal, dropout)(Embeds()(inputs))
    outputs = layers.Dense(WORDS)(x if causal else layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, weighted_metrics=["accuracy"])
    return model


def encoder(dropout: float = 0.0) -> keras.Model:
    return transformer(causal=False, dropout=dropout)


def decoder() -> keras.Model:
    return transformer(causal=True)


def sentences() -> np.ndarray:
    """21 sentences of several lengths, padded with 0."""
    draw = np.random.default_rng(0)
    words = draw.integers(1, WORDS, (21, LENGTH + 1))
    words[np.arange(LENGTH + 1) >= draw.integers(2, LENGTH + 2, 21)[:, None]] = 0
    return words


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_an_encoder_of_masked_sentences_is_that_of_keras(as_in_keras: Any, replicas: int) -> None:
    x = sentences()[:, :LENGTH]
    as_in_keras(encoder, x, x[:, 0], replicas=[replicas])


@pytest.mark.long  # the encoder is trained every day
def test_a_decoder_that_predicts_the_next_word_is_that_of_keras(as_in_keras: Any) -> None:
    words = sentences()
    as_in_keras(decoder, words[:, :-1], words[:, 1:], replicas=[2])


@pytest.mark.long  # tests/exactness/test_randomness.py does the like every day
def test_dropout_on_one_device_draws_what_keras_draws(as_in_keras: Any) -> None:
    x = sentences()[:, :LENGTH]
    as_in_keras(lambda: encoder(0.2), x, x[:, 0], replicas=[1])
