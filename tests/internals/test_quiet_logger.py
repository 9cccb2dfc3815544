"""What TensorFlow logs in a notebook while kfit trains on several devices."""

import logging
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.internals.quiet_logger import call_of_kfit


class Clipping(keras.Sequential):
    """A model whose step kfit traces twice, since an error tells it that gradients are changed."""

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 0.1)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


@pytest.fixture
def logged() -> Iterator[list[str]]:
    """The messages of TensorFlow's logger, at the level that it has in a notebook."""
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = tf.get_logger()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield messages
    logger.setLevel(level)
    logger.removeHandler(handler)


def test_a_training_logs_nothing_of_its_devices(logged: list[str]) -> None:
    model = Clipping([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    strategy = kfit.distribute.Mirrored(["CPU:0", "CPU:1"])
    kfit.fit(model, np.ones((5, 3)), np.ones(5), batch_size=4, verbose=0, strategy=strategy)
    assert logged == []


def test_other_messages_and_warnings_are_kept(logged: list[str]) -> None:
    assert kfit.distribute.Mirrored(["CPU:0", "CPU:1"]).num_replicas == 2
    tf.get_logger().info("Reading %s", "x.csv")
    tf.get_logger().warning("Reduce to %s failed", "CPU:0")
    assert logged == ["Reading x.csv", "Reduce to CPU:0 failed"]


def test_eager_calls_of_kfit_are_not_warned_of_but_those_of_the_program(logged: list[str]) -> None:
    # TensorFlow itself logs it only five times a process.
    warning = "Using MirroredStrategy eagerly has significant overhead currently."
    with call_of_kfit():
        tf.get_logger().warning(warning)
        tf.get_logger().warning("Another one")
    tf.get_logger().warning(warning)
    assert logged == ["Another one", warning]
