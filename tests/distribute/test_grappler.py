"""The same program comes to the same bits, whatever the threads do."""

from collections import Counter

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import kfit
from kfit.distribute.grappler import adding_in_order


def _chain(a: tf.Tensor, b: tf.Tensor, c: tf.Tensor) -> tf.Tensor:
    return a + b + c * 2.0  # of these only the last one has a buffer to spare


def test_graphs_add_as_they_are_written() -> None:
    draw = np.random.default_rng(0)
    values = [tf.constant(draw.normal(size=1000), tf.float64) for _ in range(3)]
    exact = _chain(*values)
    with adding_in_order():
        graph = tf.function(_chain, autograph=False)
        assert all(np.array_equal(graph(*values), exact) for _ in range(20))


def test_the_programs_own_options_hold_outside() -> None:
    runtime = context.context()
    before = runtime.function_call_options
    with adding_in_order():
        assert runtime.function_call_options is not before
    assert runtime.function_call_options is before


@pytest.mark.long
def test_training_with_many_additions_is_repeatable() -> None:
    """Branches that share what they read, of which any may be the last one to do so."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(64, 40)).astype("float32")
    y = draw.normal(size=(64, 1)).astype("float32")

    def trained() -> bytes:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((40,))
        h = keras.layers.Dense(300)(inputs)
        a = keras.layers.Add()([h, *(keras.layers.Dense(300, "tanh")(h) for _ in range(5))])
        b = keras.layers.Add()([h, a, *(keras.layers.Dense(300)(a) for _ in range(3))])
        model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Add()([a, b, h])))
        trainer = kfit.Trainer(model, "one_device", seed=1)
        trainer.compile(keras.optimizers.SGD(1e-3), "mse")
        trainer.fit(x, y, batch_size=16, epochs=3, verbose=0)
        return b"".join(weight.tobytes() for weight in model.get_weights())

    assert len(Counter(trained() for _ in range(5))) == 1
