"""Layers whose gradients or states need care, and inputs of several kinds."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers, losses, optimizers

from tests.exactness.cases.data import labels, numbers, regression, rng, words
from tests.exactness.cases.models import sgd
from tests.exactness.cases.registry import case


@case
def sparse_gradients(n: int) -> Any:
    embedding = layers.Embedding(9, 3)
    model = keras.Sequential([layers.Input((5,)), embedding, layers.Flatten(), layers.Dense(2)])
    model.compile(optimizers.Adam(0.01, epsilon=1e-2, global_clipnorm=0.1), "mse")
    return model, (words(n), numbers(n, 2))


@case
def convolution(n: int) -> Any:
    features = [layers.Conv2D(3, 2, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
    model = keras.Sequential([layers.Input((5, 5, 1)), *features, layers.Dense(3)])
    loss = losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model, (numbers(n, 5, 5, 1), labels(n, 3))


@case
def synchronized_batch_normalization(n: int) -> Any:
    norm = layers.BatchNormalization(synchronized=True, momentum=0.7)
    model = keras.Sequential([layers.Input((4,)), layers.Dense(5), norm, layers.Dense(2)])
    model.compile(optimizers.SGD(0.05), "mse")
    return model, regression(n)


@case
def masked_synchronized_batch_normalization(n: int) -> Any:
    x = numbers(n, 5, 3)
    x[rng().random((n, 5)) < 0.4] = 0.0
    norm = layers.BatchNormalization(synchronized=True, momentum=0.7)
    model = keras.Sequential([layers.Input((5, 3)), layers.Masking(), layers.Dense(4), norm])
    model.add(layers.Dense(2))
    model.compile(optimizers.SGD(0.05), "mse")
    return model, (x, numbers(n, 5, 2))


@case
def low_rank_adapters_on_whole_numbers(n: int) -> Any:
    """LoRA beside kernels that are quantized to int8, of a Dense and of an Embedding."""
    embedding, dense = layers.Embedding(9, 4), layers.Dense(6, "tanh")
    model = keras.Sequential([layers.Input((5,)), embedding, dense, layers.Dense(2)])
    for layer in (embedding, dense):
        layer.enable_lora(2)
        layer.quantize("int8")
    model.compile(optimizers.LossScaleOptimizer(sgd(momentum=0.5)), "mse")
    return model, (words(n), numbers(n, 5, 2))


@case
def text(n: int) -> Any:
    vocabulary = ["up", "down", "left", "right"]
    lookup = layers.StringLookup(vocabulary=vocabulary, output_mode="multi_hot")
    model = keras.Sequential([layers.Input((3,), dtype="string"), lookup, layers.Dense(1)])
    model.compile(sgd(), "mse")
    return model, (tf.constant(rng().choice(vocabulary, (n, 3))), numbers(n, 1))


@case
def several_inputs(n: int) -> Any:
    inputs = {"a": layers.Input((2,), name="a"), "b": layers.Input((3,), name="b")}
    outputs = layers.Dense(2)(layers.Concatenate()([inputs["a"], inputs["b"]]))
    model = keras.Model(inputs, outputs)
    model.compile(sgd(), "mse")
    return model, ({"a": numbers(n, 2), "b": numbers(n, 3)}, numbers(n, 2))
