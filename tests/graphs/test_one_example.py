"""Steps that compute with each example by itself, such as to clip the gradient of each."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from tests.sweeps import only

Gradients = Callable[[Any, Any, Any], list[Any]]
X = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(5, 1)).astype("float32")


def weights(net: Any) -> list[Any]:
    return [variable.value for variable in net.trainable_variables]


def mean_of_clipped(grads: list[Any]) -> list[Any]:
    flat = [tf.reshape(grad, [tf.shape(grad)[0], -1]) for grad in grads]
    norms = tf.sqrt(sum(tf.reduce_sum(each**2, 1) for each in flat))
    factors = tf.minimum(1.0, 0.5 / norms)
    return [
        tf.reduce_mean(grad * tf.reshape(factors, [-1] + [1] * (grad.shape.rank - 1)), 0)
        for grad in grads
    ]


def by_jacobian(net: Any, x: Any, y: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        values = keras.losses.mean_squared_error(y, net(x))
    return mean_of_clipped(tape.jacobian(values, weights(net)))


def mapped(loss: Callable[[Any, Any, Any], Any]) -> Gradients:
    def clipped(net: Any, x: Any, y: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            value = loss(net, x[None], y[None])
        return tf.clip_by_global_norm(tape.gradient(value, weights(net)), 0.5)[0]

    def by_map(net: Any, x: Any, y: Any) -> list[Any]:
        found = tf.vectorized_map(lambda one: clipped(net, *one), (x, y))
        return [tf.reduce_mean(grad, 0) for grad in found]

    return by_map


def by_slopes(net: Any, x: Any, y: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        with tf.GradientTape() as inner:
            inner.watch(x)
            outputs = net(x)
        slopes = inner.batch_jacobian(outputs, x)
        loss = tf.reduce_mean((slopes - 1.0) ** 2)
    return tape.gradient(loss, net.trainable_variables)


def by_pairs(net: Any, x: Any, y: Any) -> list[Any]:
    with tf.GradientTape() as tape:
        values = tf.reduce_sum((net(x) @ tf.transpose(net(x)) - 1.0) ** 2, 1)
    return mean_of_clipped(tape.jacobian(values, weights(net)))


def clipped_again(net: Any, x: Any, y: Any) -> list[Any]:
    return tf.clip_by_global_norm(by_jacobian(net, x, y), 0.1)[0]


EXACT: dict[str, Gradients] = {
    "jacobian": by_jacobian,
    "map": mapped(lambda net, x, y: tf.reduce_mean((net(x) - y) ** 2)),
    "map_of_compiled_loss": mapped(lambda net, x, y: net.compute_loss(x, y, net(x))),
    "slopes": by_slopes,
}
WARNED: dict[str, tuple[Gradients, str]] = {
    "pairs": (by_pairs, "combines the examples"),
    "clipped_again": (clipped_again, "changes gradients"),
}


class Takes(keras.Model):
    """Applies the gradients that a function computes."""

    def __init__(self, take: Gradients) -> None:
        super().__init__()
        self._layers_in_turn = [layers.Dense(3, activation="tanh"), layers.Dense(1)]
        self._take = take

    def call(self, x: Any) -> Any:
        for layer in self._layers_in_turn:
            x = layer(x)
        return x

    def train_step(self, data: Any) -> dict[str, Any]:
        self.optimizer.apply(self._take(self, *data), self.trainable_variables)
        return {"loss": 0.0}


def trained(take: Gradients, strategy: Any) -> tuple[list[Any], list[str]]:
    """Returns the weights after a step, and what kfit has warned of."""
    keras.utils.set_random_seed(0)
    model = Takes(take)
    model(X)
    model.compile("sgd", "mse")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        kfit.Trainer(model, strategy).fit(X, Y, batch_size=5, verbose=0)
    texts = [str(each.message) for each in said]
    return model.get_weights(), [text for text in texts if "replicas" in text]


@pytest.mark.parametrize("name", only(["map"], EXACT))
def test_each_example_by_itself(tiny: Any, name: str) -> None:
    (one, _), (several, said) = (trained(EXACT[name], tiny.strategy(n)) for n in (1, 2))
    assert tiny.distance(one, several) < 1e-6
    assert said == []


@pytest.mark.parametrize("name", only(["pairs"], WARNED))
def test_what_is_not_of_each_example_is_warned_of(tiny: Any, name: str) -> None:
    take, message = WARNED[name]
    assert any(message in text for text in trained(take, tiny.strategy(2))[1])
