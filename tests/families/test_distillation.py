"""A student that learns from the labels, and from what a frozen teacher says."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

pytestmark = pytest.mark.long

CLASSES, TEMPERATURE = 3, 3.0


def images() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(21, 6, 6, 1)).astype("float32")


def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, CLASSES, 21)


def network(filters: int) -> keras.Model:
    convolution = layers.Conv2D(filters, 3, 2, padding="same", activation="relu")
    model = keras.Sequential([keras.Input((6, 6, 1)), convolution, layers.Flatten()])
    model.add(layers.Dense(CLASSES))
    return model


class Distiller(keras.Model):
    """Weighs both losses in its own `compute_loss`, as in Keras' example."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = network(8), network(3)
        self.student_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.distillation_loss = keras.losses.KLDivergence()
        self.teacher.trainable = False

    def call(self, x: Any) -> Any:
        return self.student(x)

    def compute_loss(
        self,
        x: Any = None,
        y: Any = None,
        y_pred: Any = None,
        sample_weight: Any = None,
        training: bool = True,
    ) -> Any:
        told = ops.softmax(self.teacher(x, training=False) / TEMPERATURE)
        learned = self.distillation_loss(told, ops.softmax(y_pred / TEMPERATURE))
        return 0.3 * self.student_loss(y, y_pred) + 0.7 * TEMPERATURE**2 * learned


class StepsByItself(Distiller):
    """Does the same in a `train_step`."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self.student(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.student.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(loss, sample_weight=ops.shape(y)[0])
            else:
                metric.update_state(y, y_pred)
        return {metric.name: metric.result() for metric in self.metrics}


def distiller(cls: type[Distiller] = Distiller) -> keras.Model:
    model = cls()
    model.compile(keras.optimizers.SGD(0.2, nesterov=True, momentum=0.9), metrics=["accuracy"])
    return model


def test_a_distiller_with_its_own_loss_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(distiller, images(), labels(), validation_data=(images()[:9], labels()[:9]))


def test_a_distiller_with_its_own_step_is_that_of_keras(as_in_keras: Any) -> None:
    as_in_keras(lambda: distiller(StepsByItself), images(), labels(), replicas=[2])
