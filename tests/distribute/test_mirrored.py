"""TensorFlow's own MirroredStrategy, which sums by collectives as strategies on GPUs do."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit


def by_collectives() -> tf.distribute.MirroredStrategy:
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


class OwnStep(keras.Model):
    """A model with its own step, and a value that is no metric."""

    def __init__(self) -> None:
        super().__init__()
        self.out = keras.layers.Dense(2)

    def call(self, x: Any) -> Any:
        return self.out(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.mean_squared_error(y, self(x, training=True)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"own": loss}


def dense() -> Any:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(24, 4)).astype("float32")
    return x, x[:, :2] - x[:, 2:]


def pipeline(batch: int) -> Callable[[Any], Any]:
    return lambda arrays: tf.data.Dataset.from_tensor_slices(arrays).batch(batch)


def generator(arrays: Any) -> Any:
    x, y = arrays
    return ((x[k : k + 7], y[k : k + 7]) for k in range(0, 24, 7))


def own() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = OwnStep()
    made.build((None, 4))
    made.compile("adam")
    return made


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(pipeline(8), id="8", marks=pytest.mark.long),
        pytest.param(pipeline(7), id="7"),
        pytest.param(generator, id="generator", marks=pytest.mark.long),
    ],
)
def test_an_own_step_on_data_that_ends(tiny: Any, data: Any) -> None:
    one, many = own(), own()
    expected = one.fit(data(dense()), verbose=0).history["own"]
    got = kfit.Trainer(many, by_collectives()).fit(data(dense()), verbose=0).history["own"]
    assert got == pytest.approx(expected, rel=1e-5)
    assert tiny.distance(one, many) < 1e-5


def words() -> Any:
    return np.arange(96).reshape(24, 4) % 10, np.ones((24, 1), "float32")


def embedding() -> keras.Model:
    keras.utils.set_random_seed(1)
    stack = [
        keras.Input((4,), dtype="int64"),
        keras.layers.Embedding(10, 3),
        keras.layers.GlobalAveragePooling1D(),
        keras.layers.Dense(1),
    ]
    made = keras.Sequential(stack)
    made.compile("adam", "mse")
    return made


@pytest.mark.long
@pytest.mark.parametrize("batch", [7, 8, 5])
@pytest.mark.parametrize("single_steps", [False, True])
def test_an_embedding_on_batches_of_several_sizes(
    tiny: Any, batch: int, single_steps: bool
) -> None:
    one, many = embedding(), embedding()
    trainer = kfit.Trainer(many, by_collectives())
    callbacks = [keras.callbacks.LambdaCallback(on_train_batch_end=lambda b, logs: None)]
    options = {"epochs": 2, "verbose": 0, "callbacks": callbacks if single_steps else []}
    data = pipeline(batch)(words())
    expected = one.fit(data, **options).history["loss"]
    assert trainer.fit(data, **options).history["loss"] == pytest.approx(expected, rel=1e-5)
    assert tiny.distance(one, many) < 1e-5
    np.testing.assert_allclose(trainer.predict(data, verbose=0), one.predict(data, verbose=0), 1e-5)
    assert trainer.evaluate(data, verbose=0) == pytest.approx(one.evaluate(data, verbose=0))
