"""A variational autoencoder with a `train_step` of its own, and one that uses `add_loss`."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from tests.sweeps import only

SIDE, LATENT = 6, 2


def images() -> np.ndarray:
    return np.random.default_rng(0).uniform(size=(21, SIDE, SIDE, 1)).astype("float32")


def noise() -> np.ndarray:
    return np.random.default_rng(1).normal(size=(21, LATENT)).astype("float32")


class Sampling(layers.Layer):
    """Draws a code from the distribution that the encoder gives, unless the noise is given."""

    def __init__(self) -> None:
        super().__init__()
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, mean: Any, log_variance: Any, noise: Any = None) -> Any:
        if noise is None:
            noise = keras.random.normal(ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_variance) * noise


class Autoencoder(keras.Model):
    """Encodes images, draws codes and decodes them, with both losses as in Keras' example."""

    def __init__(self) -> None:
        super().__init__()
        self.features = keras.Sequential(
            [keras.Input((SIDE, SIDE, 1)), layers.Conv2D(4, 3, 2, "same", activation="relu")]
        )
        self.features.add(layers.Flatten())
        self.mean, self.log_variance = layers.Dense(LATENT), layers.Dense(LATENT)
        self.sampling = Sampling()
        self.decoder = keras.Sequential([keras.Input((LATENT,)), layers.Dense(36, "relu")])
        self.decoder.add(layers.Reshape((SIDE, SIDE, 1)))
        self.decoder.add(layers.Conv2DTranspose(1, 3, padding="same", activation="sigmoid"))
        names = ("total_loss", "reconstruction_loss", "kl_loss")
        self.trackers = [keras.metrics.Mean(name=name) for name in names]

    def call(self, images: Any, noise: Any = None) -> Any:
        mean, log_variance = self.encoded(images)
        return self.decoder(self.sampling(mean, log_variance, noise))

    def encoded(self, images: Any) -> tuple[Any, Any]:
        features = self.features(images)
        return self.mean(features), self.log_variance(features)

    @property
    def metrics(self) -> list[keras.Metric]:
        return self.trackers

    def train_step(self, data: Any) -> dict[str, Any]:
        images, *noise = data if isinstance(data, tuple) else (data,)
        with tf.GradientTape() as tape:
            mean, log_variance = self.encoded(images)
            decoded = self.decoder(self.sampling(mean, log_variance, *noise))
            pixels = keras.losses.binary_crossentropy(images, decoded)
            reconstruction = ops.mean(ops.sum(pixels, axis=(1, 2)))
            kl = -0.5 * (1 + log_variance - ops.square(mean) - ops.exp(log_variance))
            kl = ops.mean(ops.sum(kl, axis=1))
            total = reconstruction + kl
        gradients = tape.gradient(total, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        for tracker, value in zip(self.trackers, (total, reconstruction, kl), strict=True):
            tracker.update_state(value)
        return {tracker.name: tracker.result() for tracker in self.trackers}


class HasNoCall(Autoencoder):
    """Is trained by its step alone, as the model of Keras' example.

    All of its variables are made beforehand. Only `Sampling`, which has none, is not built.
    """

    call = keras.Model.call

    def __init__(self) -> None:
        super().__init__()
        for layer in (self.mean, self.log_variance):
            layer.build(self.features.output_shape)


def autoencoder(cls: type[Autoencoder] = Autoencoder) -> keras.Model:
    model = cls()
    model.compile(keras.optimizers.SGD(0.01))
    return model


class AddsItsLoss(layers.Layer):
    """Adds the divergence of the codes' distribution from the normal one."""

    def call(self, mean: Any, log_variance: Any) -> Any:
        kl = ops.square(mean) + ops.exp(log_variance) - 1 - log_variance
        self.add_loss(0.05 * ops.mean(ops.sum(kl, axis=-1)))
        return mean


def of_added_loss() -> keras.Model:
    inputs, noise = keras.Input((SIDE * SIDE,)), keras.Input((LATENT,))
    features = layers.Dense(8, "tanh")(inputs)
    mean, log_variance = layers.Dense(LATENT)(features), layers.Dense(LATENT)(features)
    code = Sampling()(AddsItsLoss()(mean, log_variance), log_variance, noise)
    model = keras.Model([inputs, noise], layers.Dense(SIDE * SIDE, "sigmoid")(code))
    model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["mae"])
    return model


@pytest.mark.parametrize("replicas", only([2], [1, 2]))
def test_with_given_noise_the_numbers_are_those_of_keras(as_in_keras: Any, replicas: int) -> None:
    as_in_keras(autoencoder, images(), noise(), replicas=[replicas])


@pytest.mark.long  # tests/steps/test_build.py does the like every day
def test_a_model_without_a_call_is_trained_as_in_keras(as_in_keras: Any) -> None:
    as_in_keras(lambda: autoencoder(HasNoCall), images(), noise(), replicas=[2])


@pytest.mark.long
def test_an_added_divergence_counts_as_in_keras(as_in_keras: Any) -> None:
    flat = images().reshape(21, -1)
    as_in_keras(of_added_loss, (flat, noise()), flat, replicas=[2])


def test_drawn_noise_is_that_of_keras_on_one_device(as_in_keras: Any) -> None:
    as_in_keras(autoencoder, images(), replicas=[1])


@pytest.mark.long  # tests/exactness/test_randomness.py does the like every day
def test_drawn_noise_repeats_itself_on_two_replicas(repeats_itself: Any) -> None:
    """The state of the generator moves on as on one device: by one draw in each of 6 steps."""
    model = repeats_itself(autoencoder, images())
    assert model.sampling.seed_generator.state.numpy().tolist() == [1337, 6]
