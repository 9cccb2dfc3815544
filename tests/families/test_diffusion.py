"""A small diffusion model: it learns to tell the noise in an image, at random strengths."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

pytestmark = pytest.mark.long

SIDE = 6


def images() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(21, SIDE, SIDE, 1)).astype("float32")


def noise() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(21, SIDE, SIDE, 1)).astype("float32")


def times() -> np.ndarray:
    return np.random.default_rng(2).uniform(size=(21, 1, 1, 1)).astype("float32")


def network() -> keras.Model:
    image, strength = keras.Input((SIDE, SIDE, 1)), keras.Input((1, 1, 1))
    strengths = layers.UpSampling2D(SIDE)(strength)
    x = layers.Concatenate()([image, strengths])
    x = layers.Conv2D(4, 3, padding="same", activation="swish")(x)
    return keras.Model([image, strength], layers.Conv2D(1, 3, padding="same")(x))


class Diffusion(keras.Model):
    """Trains a network, and keeps a second one that holds the moving average of its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.network, self.averaged = network(), network()
        self.averaged.set_weights(self.network.get_weights())
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.noise_loss = keras.metrics.Mean(name="noise_loss")
        self.built = True

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.noise_loss]

    def drawn(self, images: Any) -> tuple[Any, Any]:
        noise = keras.random.normal(ops.shape(images), seed=self.seed_generator)
        rows = ops.shape(images)[0]
        return noise, keras.random.uniform((rows, 1, 1, 1), seed=self.seed_generator)

    def train_step(self, data: Any) -> dict[str, Any]:
        images, noise, times = data[0] if isinstance(data, tuple) else (data, *self.drawn(data))
        angles = 0.02 + times * (1.5 - 0.02)
        noisy = ops.cos(angles) * images + ops.sin(angles) * noise
        with tf.GradientTape() as tape:
            loss = self.mean_loss(noise, self.network([noisy, ops.sin(angles)], training=True))
        weights = self.network.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.noise_loss.update_state(loss)
        for weight, average in zip(self.network.weights, self.averaged.weights, strict=True):
            average.assign(0.9 * average + 0.1 * weight)
        return {"noise_loss": self.noise_loss.result()}

    def mean_loss(self, noise: Any, told: Any) -> Any:
        return ops.mean(ops.abs(noise - told))


def diffusion(cls: type[Diffusion] = Diffusion) -> keras.Model:
    model = cls()
    model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.01, epsilon=1e-3))
    return model


class LeavesPixels(Diffusion):
    """Takes the gradients of a loss of each pixel: of their sum, though it is called a loss."""

    def mean_loss(self, noise: Any, told: Any) -> Any:
        return keras.losses.mean_absolute_error(noise, told)


def test_with_given_noise_the_numbers_are_those_of_keras(as_in_keras: Any) -> None:
    """Those of the averaged network as well, which the step updates without an optimizer."""
    as_in_keras(diffusion, (images(), noise(), times()))


def test_a_loss_of_each_pixel_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(lambda: diffusion(LeavesPixels), (images(), noise(), times()), replicas=[2])


def test_drawn_noise_is_that_of_keras_on_one_device(as_in_keras: Any) -> None:
    as_in_keras(diffusion, images(), replicas=[1])
