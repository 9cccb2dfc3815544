"""Losses that combine the examples of a replica are warned of by name, and others are not."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kfit

Loss = Callable[[Any, Any], Any]


def of_all_replicas(values: Any) -> Any:
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return values
    return context.all_gather(values, axis=0)


def gap(one: Any, other: Any) -> Any:
    return ops.sum(ops.square(one - other), axis=-1)


COMBINE: dict[str, Loss] = {
    "every_product": lambda y, z: ops.mean(ops.matmul(z, ops.transpose(z))),
    "every_product_by_einsum": lambda y, z: ops.mean(ops.square(ops.einsum("id,jd->ij", z, z))),
    "softmax_over_the_batch": lambda y, z: (
        -ops.diagonal(ops.log_softmax(ops.matmul(z, ops.transpose(y))))
    ),
    "every_difference": lambda y, z: ops.mean(ops.square(z[:, None] - z[None]), axis=(1, 2)),
    "distance_from_the_mean": lambda y, z: gap(z, ops.mean(z, axis=0)),
    "part_of_the_sum": lambda y, z: ops.mean(gap(z / ops.sum(z), y)),
    "with_the_next_one": lambda y, z: gap(z, ops.roll(z, 1, axis=0)),
    "with_the_last_one": lambda y, z: gap(z, ops.roll(z, 1, axis=-2)),
    "with_all_before": lambda y, z: ops.mean(tf.cumsum(gap(z, y), axis=-1)),
    "with_any_other_one": lambda y, z: ops.mean(gap(z, tf.random.shuffle(z, seed=1))),
}
DO_NOT: dict[str, Loss] = {
    "mean": lambda y, z: ops.mean(ops.square(y - z)),
    "of_each": gap,
    "products_of_each": lambda y, z: -ops.einsum("id,id->i", y, z),
    "products_within_each": lambda y, z: ops.mean(
        ops.square(ops.matmul(y[:, :, None], z[:, None, :]))
    ),
    "within_each": lambda y, z: gap(z - ops.mean(z, axis=-1, keepdims=True), y),
    "within_each_rolled": lambda y, z: gap(z, ops.roll(z, 1, axis=-1)),
    "softmax": lambda y, z: ops.categorical_crossentropy(ops.softmax(y), ops.softmax(z)),
    "by_a_matrix": lambda y, z: gap(ops.matmul(z, ops.eye(3) * 2.0), y),
    "with_all_replicas": lambda y, z: ops.mean(gap(z, ops.mean(of_all_replicas(z), axis=0))),
}


def warned_of(loss: Loss, strategy: Any) -> list[str]:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", loss)
    rows = np.random.RandomState(0).normal(size=(8, 7)).astype("float32")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kfit.Trainer(model, strategy).evaluate(rows[:, :4], rows[:, 4:], verbose=0)
    return [text for text in map(_text, said) if text.startswith(("What a loss", "The loss"))]


def _text(warning: warnings.WarningMessage) -> str:
    return str(warning.message)


@pytest.mark.parametrize("name", COMBINE)
def test_examples_that_are_combined(tiny: Any, name: str) -> None:
    said = warned_of(COMBINE[name], tiny.strategy(2))
    assert any(text.startswith("What a loss returns combines the examples") for text in said)


@pytest.mark.parametrize("name", DO_NOT)
def test_examples_that_are_not_combined(tiny: Any, name: str) -> None:
    assert warned_of(DO_NOT[name], tiny.strategy(2)) == []


def test_one_replica_has_all_examples(tiny: Any) -> None:
    assert warned_of(COMBINE["every_product"], tiny.strategy(1)) == []


class OwnStep(keras.Model):
    """Takes the gradient of a mean of products of the examples with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, x: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            codes = self(x, training=True)
            loss = ops.mean(ops.square(ops.matmul(codes, ops.transpose(codes))))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        return {"loss": loss}


def test_a_step_of_ones_own(tiny: Any) -> None:
    model = OwnStep()
    model.compile("sgd")
    message = "The loss that this step takes gradients of combines the examples of the batch"
    with pytest.warns(UserWarning, match=message):
        kfit.Trainer(model, tiny.strategy(2)).fit(np.ones((8, 4), "float32"), verbose=0)
