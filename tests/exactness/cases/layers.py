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


def sparse(n: int, features: int = 9) -> Any:
    import scipy.sparse  # not there beside the oldest Keras, where other tests import the cases

    return scipy.sparse.csr_matrix(numbers(n, features) * (rng().random((n, features)) < 0.3))


@case
def sparse_inputs(n: int) -> Any:
    """Keras looks up the rows of the kernel by the different features of the batch."""
    model = keras.Sequential([layers.Input((9,), sparse=True), layers.Dense(3), layers.Dense(2)])
    model.compile(optimizers.Adam(0.01, epsilon=1e-2, global_clipnorm=0.1), "mse")
    return model, (sparse(n), numbers(n, 2))


@case
def sparse_inputs_of_one_kernel(n: int) -> Any:
    """Of two inputs, so that its gradient has two rows of some features."""
    inputs = [layers.Input((9,), sparse=True, name=name) for name in ("a", "b")]
    shared = layers.Dense(3)
    model = keras.Model(inputs, layers.Dense(2)(layers.add([shared(each) for each in inputs])))
    model.compile(optimizers.Adagrad(0.1), "mse")
    return model, ([sparse(n), sparse(n)[::-1]], numbers(n, 2))


class UniqueWords(layers.Layer):
    """An embedding that looks up each word of the batch once."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(9, 3), initializer="uniform")

    def call(self, inputs: Any) -> Any:
        different, places = tf.unique(tf.reshape(inputs, [-1]))
        found = tf.gather(tf.gather(self.table, different), places)
        return tf.reshape(found, [-1, inputs.shape[1] * 3])


@case
def unique_words(n: int) -> Any:
    model = keras.Sequential([layers.Input((5,), dtype="int64"), UniqueWords(), layers.Dense(2)])
    model.compile(optimizers.RMSprop(0.01, epsilon=1e-2), "mse")
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
