"""`Trainer.verify` gives a step the data that `fit` does, and leaves no trace of reading them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.verification.few_batches import inputs_of

L = keras.layers
X = np.random.default_rng(0).normal(size=(37, 4)).astype("float32")


class Autoencoder(keras.Model):
    """Its step takes images alone, and notes what it got."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = L.Dense(4)
        self.got: list[Any] = []

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def loss_of(self, images: Any) -> Any:
        return tf.reduce_mean(tf.square(images - self(images)))

    def train_step(self, data: Any) -> Any:
        self.got.append(keras.tree.map_structure(lambda leaf: leaf.dtype.name, data))
        images = data["x"] if isinstance(data, dict) else data
        with tf.GradientTape() as tape:
            loss = self.loss_of(images)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Pairs(Autoencoder):
    """Compares each example with the one at the opposite end of the batch."""

    def loss_of(self, images: Any) -> Any:
        return tf.reduce_mean(tf.square(self(images) - self(images[::-1]) - 1.0))


def made(cls: Callable[[], Autoencoder]) -> Autoencoder:
    keras.utils.set_random_seed(1)
    model = cls()
    model(X[:1])
    model.compile(keras.optimizers.SGD(0.1))
    return model


class Dicts(keras.utils.PyDataset):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return {"x": X[index * 15 : index * 15 + 15]}


def pipeline(x: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(x).batch(15)


@pytest.mark.parametrize(
    "data",
    [
        lambda: X,
        *(
            pytest.param(data, marks=pytest.mark.long)
            for data in (lambda: pipeline(X), lambda: pipeline({"x": X}), Dicts)
        ),
    ],
)
def test_a_step_gets_the_data_that_fit_gives_it(data: Any, tiny: Any) -> None:
    fitted, verified = made(Autoencoder), made(Autoencoder)
    kfit.fit(fitted, data(), strategy="one_device", verbose=0)
    found = kfit.Trainer(verified, "one_device").verify(data(), batch_size=None)
    assert found.verdict == "equal", str(found)
    assert {repr(got) for got in verified.got} == {repr(got) for got in fitted.got}


@pytest.mark.long
def test_a_step_of_bare_tensors_that_differs_is_found(tiny: Any) -> None:
    found = kfit.Trainer(made(Pairs), "one_device").verify(X, batch_size=20, shuffle=False)
    assert found.verdict == "differs", str(found)


def test_the_inputs_of_a_batch() -> None:
    assert inputs_of((1, 2)) == 1
    assert inputs_of({"x": 1}) == {"x": 1}
    assert inputs_of(1) == 1


class Noisy(keras.utils.PyDataset):
    """Draws from Keras without a seed."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        noise = np.asarray(keras.random.normal((10, 4)))
        return X[index * 10 : index * 10 + 10] + noise, X[:10, :1]


@pytest.mark.long
@pytest.mark.parametrize("has_drawn", [False, True])
def test_fit_draws_what_it_would_have_drawn_without_verify(has_drawn: bool, tiny: Any) -> None:
    def trained(verifies: bool) -> Any:
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
        model.compile("adam", "mse")
        if has_drawn:
            keras.random.normal((1,))
        trainer = kfit.Trainer(model, "one_device")
        if verifies:
            trainer.verify(Noisy(), steps=2)
        trainer.fit(Noisy(), verbose=0)
        return model

    assert tiny.distance(trained(False), trained(True)) == 0.0
