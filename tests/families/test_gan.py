"""Adversarial networks: steps that train two models, each by its own optimizer."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

pytestmark = pytest.mark.long

LATENT = 3


def real() -> np.ndarray:
    return np.random.default_rng(0).normal(2.0, 1.0, (21, 4)).astype("float32")


def noise(*draws: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(21, *draws, LATENT)).astype("float32")


class Adversaries(keras.Model):
    """A generator and a discriminator, with a compile of their own."""

    def __init__(self) -> None:
        super().__init__()
        hidden = layers.Dense(6, layers.LeakyReLU(negative_slope=0.2))
        self.generator = keras.Sequential([keras.Input((LATENT,)), hidden, layers.Dense(4)])
        hidden = layers.Dense(6, layers.LeakyReLU(negative_slope=0.2))
        self.discriminator = keras.Sequential([keras.Input((4,)), hidden, layers.Dense(1)])
        self.seed_generator = keras.random.SeedGenerator(1337)
        self.trackers = [keras.metrics.Mean(name=name) for name in ("d_loss", "g_loss")]
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

    @property
    def metrics(self) -> list[keras.Metric]:
        return self.trackers

    def told(self, *losses: Any) -> dict[str, Any]:
        for tracker, loss in zip(self.trackers, losses, strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


class Gan(Adversaries):
    """The step of Keras' example, whose labels and noise may come with the data."""

    loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)

    def train_step(self, data: Any) -> dict[str, Any]:
        real, drawn = data if isinstance(data, tuple) else (data, None)
        rows = ops.shape(real)[0]
        if drawn is None:
            drawn = keras.random.normal((rows, LATENT), seed=self.seed_generator)
        both = ops.concatenate([self.generator(drawn), real], axis=0)
        labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(labels, self.discriminator(both))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            guesses = self.discriminator(self.generator(drawn))
            g_loss = self.loss_fn(ops.zeros((rows, 1)), guesses)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return self.told(d_loss, g_loss)


class WassersteinGan(Adversaries):
    """Trains its critic twice a step, with a penalty on the gradient between real and fake."""

    def penalty(self, real: Any, fake: Any, share: Any) -> Any:
        between = real + share * (fake - real)
        with tf.GradientTape() as tape:
            tape.watch(between)
            scores = self.discriminator(between, training=True)
        gradients = tape.gradient(scores, between)
        norm = ops.sqrt(ops.sum(ops.square(gradients), axis=1) + 1e-6)
        return ops.mean((norm - 1.0) ** 2)

    def train_step(self, data: Any) -> dict[str, Any]:
        real, drawn, shares = data[0]
        for turn in range(2):
            with tf.GradientTape() as tape:
                fake = self.generator(drawn[:, turn], training=True)
                scores = self.discriminator(fake), self.discriminator(real)
                d_loss = ops.mean(scores[0]) - ops.mean(scores[1])
                d_loss += 10.0 * self.penalty(real, fake, shares[:, turn])
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            g_loss = -ops.mean(self.discriminator(self.generator(drawn[:, 2], training=True)))
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        return self.told(d_loss, g_loss)


def gan() -> keras.Model:
    model = Gan()
    model.compile(
        keras.optimizers.SGD(0.1, momentum=0.5), keras.optimizers.Adam(0.01, epsilon=1e-3)
    )
    return model


def wasserstein_gan() -> keras.Model:
    model = WassersteinGan()
    adam = {"learning_rate": 0.01, "beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-3}
    model.compile(keras.optimizers.Adam(**adam), keras.optimizers.Adam(**adam))
    return model


def test_a_gan_with_given_noise_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(gan, real(), noise())


def test_a_gan_that_draws_its_noise_is_that_of_keras_on_one_device(as_in_keras: Any) -> None:
    as_in_keras(gan, real(), replicas=[1])


def test_a_gradient_penalty_is_that_of_keras(as_in_keras: Any) -> None:
    """Its gradients are taken twice: by the examples, then by the weights of the critic."""
    shares = np.random.default_rng(2).uniform(size=(21, 2, 1)).astype("float32")
    as_in_keras(wasserstein_gan, (real(), noise(3), shares), replicas=[2])
