"""Steps that put several batches together for one call of the model, and take them apart again."""

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.sweeps import only

Views = Callable[[Any, Any, Any], tuple[Any, Any]]
X, Z = np.random.default_rng(0).normal(size=(2, 10, 4)).astype("float32")


def number(x: Any) -> Any:
    return tf.shape(x)[0]


def sliced(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    both, n = net(tf.concat([x, z], 0)), number(x)
    return both[:n], both[n:]


def halves(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    both = net(ops.concatenate([x, z], axis=0))
    half = number(both) // 2
    return both[:half], both[-half:]


def thirds(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    three, n = net(tf.concat([x, z, -z], 0)), number(x)
    return three[:n], three[n : 2 * n] + three[2 * n :]


def split(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    return tuple(tf.split(net(tf.concat([x, z], 0)), 2))


def cut_elsewhere(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    both, n = net(tf.concat([x, z], 0)), number(x)
    return both[:n], both[n : n + n // 2]


def every_other(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    both, n = net(tf.concat([x, z], 0)), number(x)
    return both[:n], both[n::2]


def with_others(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    both, n = net(tf.concat([x, tf.ones((6, 4))], 0)), number(x)
    return both[:n], both[n:]


def few(net: Any, x: Any, z: Any) -> tuple[Any, Any]:
    both, n = net(tf.concat([x, z], 0)), number(x)
    return both[:n], both[:3]


def trained(tiny: Any, views: Views, replicas: int) -> tuple[Any, list[str]]:
    class Contrastive(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.net = keras.Sequential([layers.Dense(5, "tanh"), layers.Dense(3)])

        def call(self, x: Any) -> Any:
            return self.net(x)

        def train_step(self, data: Any) -> Any:
            with tf.GradientTape() as tape:
                one, other = views(self.net, *data)
                loss = ops.mean(one**2) + ops.mean(ops.sum((other - 1.0) ** 2, axis=1))
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            return {"loss": loss}

    keras.utils.set_random_seed(1)
    model = Contrastive()
    model.compile(keras.optimizers.SGD(0.1))
    strategy = tiny.strategy(replicas) if replicas > 1 else "one_device"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        data = tf.data.Dataset.from_tensor_slices((X, Z)).batch(6)
        history = kfit.fit(model, data, epochs=2, verbose=0, strategy=strategy)
    told = [str(each.message) for each in caught]
    return [*model.get_weights(), history.history["loss"]], told


@pytest.mark.parametrize("views", only([sliced, thirds], [sliced, halves, thirds, split]))
def test_whole_batches_are_no_selection(tiny: Any, views: Views) -> None:
    expected, _ = trained(tiny, views, 1)
    found, told = trained(tiny, views, 2)
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-4, atol=1e-6)
    assert told == []


@pytest.mark.parametrize(
    "views", only([cut_elsewhere, with_others], [cut_elsewhere, every_other, with_others, few])
)
def test_other_rows_are_warned_of(tiny: Any, views: Views) -> None:
    _, told = trained(tiny, views, 2)
    assert any("is neither a mean nor a sum over the examples of the batch" in t for t in told)
