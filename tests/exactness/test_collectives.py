"""What is summed over the replicas, or gathered from them, is that of one device."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit

pytestmark = pytest.mark.long

WORDS, LENGTH, EXAMPLES = 9, 6, 14


class Positions(keras.layers.Layer):
    """An embedding of words plus one of positions, as in keras.io's examples of transformers."""

    def __init__(self, length: Any) -> None:
        super().__init__()
        self.words = keras.layers.Embedding(WORDS, 3)
        self.positions = keras.layers.Embedding(LENGTH, 3)
        self.length = length

    def call(self, x: Any) -> Any:
        return self.words(x) + self.positions(tf.range(self.length(x)))


LENGTHS = {"fixed": lambda x: LENGTH, "of_the_batch": lambda x: tf.shape(x)[-1]}


def losses(length: str, strategy: Any) -> list[float]:
    keras.utils.set_random_seed(0)
    draw = np.random.default_rng(0)
    x = draw.integers(0, WORDS, (EXAMPLES, LENGTH)).astype("int32")
    y = draw.normal(size=(EXAMPLES, LENGTH, 1)).astype("float32")
    layers = [Positions(LENGTHS[length]), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((None,), dtype="int32"), *layers])
    # Epsilon keeps Adam from making full updates of rounding.
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
    fixed = {"batch_size": 7, "epochs": 3, "shuffle": False, "verbose": 0}
    if strategy is None:
        return list(model.fit(x, y, **fixed).history["loss"])
    return list(kfit.fit(model, x, y, **fixed, strategy=strategy).history["loss"])


@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_positions_are_summed_and_those_of_words_kept(tiny: Any, length: str) -> None:
    expected = losses(length, None)
    assert losses(length, tiny.strategy(2)) == pytest.approx(expected, rel=1e-5)


def gathered(values: Any) -> Any:
    context = tf.distribute.get_replica_context()
    is_alone = context is None or context.num_replicas_in_sync == 1
    return values if is_alone else context.all_gather(values, axis=0)


def contrast(y: Any, p: Any) -> Any:
    """Compares each example with all others of the global batch, by the program's own gather."""
    labels, codes = gathered(y > 0), gathered(p)
    same = tf.cast(tf.equal(y > 0, tf.transpose(labels)), p.dtype)
    alike = tf.nn.log_softmax(tf.matmul(p, codes, transpose_b=True))
    return -tf.reduce_sum(alike * same, 1) / tf.reduce_sum(same, 1)


def test_gathered_rows_have_gradients_though_replicas_have_unlike_numbers_of_them(
    tiny: Any,
) -> None:
    draw = np.random.default_rng(0)
    x, y = (draw.normal(size=(13, size)).astype("float32") for size in (4, 1))

    def trained(fit: Any) -> keras.Model:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), contrast)
        fit(model, x, y, batch_size=6, shuffle=False, verbose=0)
        return model

    one = trained(lambda model, *args, **options: model.fit(*args, **options))
    several = trained(
        lambda model, *args, **options: kfit.Trainer(model, tiny.strategy(4)).fit(*args, **options)
    )
    assert tiny.distance(one, several) < 2e-6
