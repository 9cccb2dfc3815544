"""The arrays of a program are never written to, also if replicas get slices of them."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.steps.own_memory import in_own_memory
from tests.sweeps import only

ROWS, SIZE = 8, 16


def aligned() -> np.ndarray:
    """An array in memory that TensorFlow shares: it begins at a multiple of 64 bytes."""
    buffer = np.empty(4 * ROWS * SIZE + 16, "float32")
    begin = -(buffer.ctypes.data // 4) % 16
    array = buffer[begin : begin + 4 * ROWS * SIZE].reshape(4 * ROWS, SIZE)
    array[:] = np.arange(array.size).reshape(array.shape)
    return array


class Slices(keras.utils.PyDataset):
    def __init__(self, made: Callable[[int], Any]) -> None:
        super().__init__()
        self.made = made

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.made(index), np.zeros((ROWS, SIZE), "float32")


def pipeline(made: Callable[[int], Any]) -> tf.data.Dataset:
    spec = tf.TensorSpec([None, SIZE], tf.float32)
    return tf.data.Dataset.from_generator(
        lambda: ((made(index), np.zeros((ROWS, SIZE), "float32")) for index in range(4)),
        output_signature=(spec, spec),
    )


def through_numpy(made: Callable[[int], Any]) -> tf.data.Dataset:
    def read(index: Any) -> Any:
        x = tf.numpy_function(made, [index], tf.float32)
        return tf.ensure_shape(x, [None, SIZE]), tf.zeros((ROWS, SIZE))

    return tf.data.Dataset.range(4).map(read)


def generator(made: Callable[[int], Any]) -> Any:
    return ((made(index), np.zeros((ROWS, SIZE), "float32")) for index in range(8))


MADE_BY = {f.__name__: f for f in (Slices, pipeline, through_numpy, generator)}


@pytest.mark.parametrize(
    ("of", "kind"),
    only(
        [("arrays", "generator")],
        itertools.product(["arrays", "tensors"], MADE_BY),
    ),
)
def test_replicas_change_no_array_of_the_program(tiny: Any, kind: str, of: str) -> None:
    x = aligned()
    before = x.copy()
    held = [x[ROWS * index :][:ROWS] for index in range(4)]
    if of == "tensors":
        held = [tf.convert_to_tensor(each) for each in held]
    if of == "tensors" and kind == "through_numpy":
        held = [each.numpy() for each in held]
    layers = [keras.layers.Rescaling(2.0), keras.layers.Dense(SIZE)]
    model = keras.Sequential([keras.Input((SIZE,)), *layers])
    model.compile("sgd", "mse")
    trainer = kfit.Trainer(model, tiny.strategy(2))
    data = MADE_BY[kind](held.__getitem__ if kind != "generator" else lambda i: held[i % 4])
    steps = {"steps_per_epoch": 4} if kind == "generator" else {}
    trainer.fit(data, epochs=2, verbose=0, **steps)
    if kind != "generator":
        trainer.evaluate(data, verbose=0)
        trainer.predict(data, verbose=0)
    np.testing.assert_array_equal(x, before)
    assert all(np.array_equal(each, before[i * ROWS :][:ROWS]) for i, each in enumerate(held))


def test_elements_keep_their_structure_and_type() -> None:
    ragged = tf.ragged.constant([[1.0], [2.0, 3.0]])
    element = {"a": tf.constant([["x"], ["y"]]), "b": (ragged, tf.sparse.eye(2), [])}
    element["c"] = tf.cast(tf.ones([2, 1]), tf.qint8)
    found = tf.function(in_own_memory)(element)
    assert found["b"][0].to_list() == ragged.to_list()
    specs = [tf.nest.map_structure(tf.type_spec_from_value, each) for each in (element, found)]
    assert specs[0] == specs[1]
