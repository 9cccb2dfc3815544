"""Copies of the batch one after another are seen, and the shape `(copies, examples)` after them."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.graphs.row_blocks import copies_in_turn
from kfit.graphs.rows_axis import rows_axis
from tests.exactness.cases.traced import asked_in_step

COPIES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "the_batch": (lambda x: x + 1.0, 1),
    "tiled": (lambda x: tf.tile(x, [4, 1]), 4),
    "tiled_before_layers": (lambda x: tf.tanh(tf.tile(x, [4, 1]) @ tf.ones((3, 5))), 4),
    "stacked": (lambda x: tf.reshape(tf.stack([x, -x]), (-1, 3)), 2),
    "put_together": (lambda x: tf.concat([x, -x, 2 * x], 0), 3),
    "sampled": (lambda x: tf.reshape(x + tf.random.normal((4, 1, 3)), (-1, 3)), 4),
    "repeated": (lambda x: tf.repeat(x, 4, axis=0), 1),
    "side_by_side": (lambda x: tf.concat([x, x], 1), 1),
    "tiled_within": (lambda x: tf.tile(x, [1, 4]), 1),
    "stacked_within": (lambda x: tf.reshape(tf.stack([x, -x], 1), (-1, 3)), 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_the_copies_of_the_batch(name: str) -> None:
    made, copies = COPIES[name]
    assert asked_in_step(lambda x, _: copies_in_turn(made(x), rows_axis), 3) == copies


@pytest.mark.parametrize("name", COPIES)
def test_the_axis_of_the_examples_of_each_copy(name: str) -> None:
    made, copies = COPIES[name]
    assert asked_in_step(lambda x, _: rows_axis(tf.reshape(made(x), (copies, -1, 3))), 3) == 1
    # Parts that are no copies have different examples.
    assert (
        asked_in_step(lambda x, _: rows_axis(tf.reshape(made(x), (copies + 2, -1, 3))), 3) is None
    )


def importance_weighted(net: Any, x: Any) -> Any:
    """The mean over the examples of the logarithm of a mean over samples (Burda et al., 2015)."""
    samples = x[None] + tf.constant([-1.0, 0.0, 2.0])[:, None, None]
    rows = net(tf.reshape(samples, (-1, 4)))
    logs = tf.reduce_sum(tf.reshape(rows, (3, -1, 2)), -1)
    return tf.reduce_mean(tf.reduce_logsumexp(logs, axis=0))


def halves_compared(net: Any, x: Any) -> Any:
    """A loss of the two halves of a batch, which are not those of a replica's part."""
    return tf.reduce_mean(tf.reduce_logsumexp(tf.reshape(net(x), (2, -1, 2)), axis=0))


@pytest.mark.parametrize("loss", [importance_weighted, halves_compared])
def test_samples_of_each_example_are_not_warned_of(tiny: Any, loss: Any) -> None:
    class Own(keras.Sequential):
        def train_step(self, x: Any) -> Any:
            with tf.GradientTape() as tape:
                value = loss(self, x)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(value, variables), variables)
            return {"loss": value}

    x = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")
    ended, told = [], []
    for strategy in (tiny.strategy(1), tiny.strategy(2)):
        keras.utils.set_random_seed(1)
        model = Own([keras.Input((4,)), keras.layers.Dense(2)])
        model.compile(keras.optimizers.SGD(0.5))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = kfit.fit(
                model, x, strategy=strategy, batch_size=8, shuffle=False, verbose=0
            ).history
        ended.append([*model.get_weights(), np.array(history["loss"])])
        told = [each for each in caught if "as far as the graph shows" in str(each.message)]
    if loss is importance_weighted:
        assert not told
        assert tiny.distance(*ended) < 1e-6
    else:
        assert told
        assert tiny.distance(*ended) > 1e-4
