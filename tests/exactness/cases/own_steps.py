"""Models that define their own steps, losses and metrics."""

from typing import Any

import keras
import tensorflow as tf
from keras import layers, losses, metrics, ops, optimizers

from tests.exactness.cases.data import numbers, positive, regression
from tests.exactness.cases.models import sgd
from tests.exactness.cases.registry import case


class OwnStep(keras.Model):
    """The way of Keras' guide: its own gradients, with the compiled loss and metrics."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight)
            scaled = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, self.trainable_weights)
        self.optimizer.apply(gradients, self.trainable_weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss)
            else:
                metric.update_state(y, y_pred, sample_weight=sample_weight)
        return {metric.name: metric.result() for metric in self.metrics}


@case
def own_train_step(n: int) -> Any:
    x = layers.Input((4,))
    model = OwnStep(x, layers.Dense(2)(layers.Dense(5, "tanh")(x)))
    model.compile(sgd(clipnorm=0.5), "mse", weighted_metrics=["mae"])
    return model, regression(n), {"sample_weight": positive(n)}


class OwnLossAndMetrics(keras.Model):
    """A step that knows nothing of scaling, with a loss that is a plain mean."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = layers.Dense(5, "tanh"), layers.Dense(2)
        self.loss_metric = metrics.Mean(name="loss")
        self.error_metric = metrics.MeanAbsoluteError(name="error")

    def call(self, x: Any) -> Any:
        return self.out(self.hidden(x))

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.loss_metric, self.error_metric]

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        self.loss_metric.update_state(loss)
        self.error_metric.update_state(y, y_pred)
        return {"loss": self.loss_metric.result(), "error": self.error_metric.result()}


@case
def own_train_step_and_metrics(n: int) -> Any:
    model = OwnLossAndMetrics()
    model.compile(optimizer=sgd(global_clipnorm=0.3))
    return model, regression(n)


class ReturnsScalars(OwnLossAndMetrics):
    """Returns the values of the batch, and no metric."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            loss = ops.mean(ops.square(y - self(x, training=True)))
        self.optimizer.apply(
            tape.gradient(loss, self.trainable_variables), self.trainable_variables
        )
        return {"batch_loss": loss}


class ReducesByItself(OwnLossAndMetrics):
    """Takes the mean of values that its loss does not reduce, as TensorFlow's guides do."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            values = losses.MeanSquaredError(reduction="none")(y, self(x, training=True))
            loss = ops.mean(values)
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return {"batch_loss": loss}


@case
def own_train_step_that_reduces_by_itself(n: int) -> Any:
    model = ReducesByItself()
    model.compile(optimizer=sgd())
    return model, regression(n)


@case
def own_train_step_that_returns_values(n: int) -> Any:
    model = ReturnsScalars()
    model.compile(optimizer=sgd())
    return model, regression(n)


class OwnLoss(keras.Model):
    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        loss = ops.mean(ops.square(y - y_pred) * 0.5)
        return loss + 0.1 * ops.mean(ops.abs(y_pred)) + sum(self.losses)


@case
def own_compute_loss(n: int) -> Any:
    x = layers.Input((4,))
    model = OwnLoss(x, layers.Dense(2, kernel_regularizer="l2")(x))
    model.compile(sgd())
    return model, regression(n)


class OwnMetrics(keras.Model):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.largest = metrics.MeanAbsoluteError(name="largest")

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        results = super().compute_metrics(x, y, y_pred, sample_weight)
        self.largest.update_state(ops.max(y, -1), ops.max(y_pred, -1))
        return {**results, "largest": self.largest.result()}


@case
def own_compute_metrics(n: int) -> Any:
    x = layers.Input((4,))
    model = OwnMetrics(x, layers.Dense(2)(x))
    model.compile(sgd(), "mse", metrics=["mae"])
    return model, regression(n)


class Gan(keras.Model):
    """Two models, two optimizers, a compile of its own; its noise comes with the data."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = keras.Sequential([layers.Input((3,)), layers.Dense(4)])
        critic = [layers.Input((4,)), layers.Dense(5, "tanh"), layers.Dense(1)]
        self.discriminator = keras.Sequential(critic)
        self.d_loss, self.g_loss = metrics.Mean(name="d_loss"), metrics.Mean(name="g_loss")
        self.built = True

    def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
        super().compile()
        self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.d_loss, self.g_loss]

    def train_step(self, batch: Any) -> dict[str, Any]:
        real, noise = batch
        fake = self.generator(noise)
        examples = ops.concatenate([fake, real], axis=0)
        truth = ops.concatenate([ops.ones_like(fake[:, :1]), ops.zeros_like(real[:, :1])], axis=0)
        with tf.GradientTape() as tape:
            d_loss = self.loss_fn(truth, self.discriminator(examples))
        weights = self.discriminator.trainable_weights
        self.d_optimizer.apply(tape.gradient(d_loss, weights), weights)
        with tf.GradientTape() as tape:
            guesses = self.discriminator(self.generator(noise))
            g_loss = self.loss_fn(ops.zeros_like(guesses), guesses)
        weights = self.generator.trainable_weights
        self.g_optimizer.apply(tape.gradient(g_loss, weights), weights)
        self.d_loss.update_state(d_loss)
        self.g_loss.update_state(g_loss)
        return {"d_loss": self.d_loss.result(), "g_loss": self.g_loss.result()}


@case
def gan(n: int) -> Any:
    model = Gan()
    model.compile(
        optimizers.SGD(0.1, momentum=0.5), sgd(), losses.BinaryCrossentropy(from_logits=True)
    )
    return model, (numbers(n, 4) + 2, numbers(n, 3))
