"""What `predict` returns: in the order of the rows, whichever replica had them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from tests.sweeps import sweep


@pytest.mark.parametrize("replicas", sweep([3, 2, 4], every=3))
def test_predict_keeps_the_order(tiny: Any, replicas: int) -> None:
    model = keras.Sequential([layers.Input((1,)), layers.Lambda(lambda x: [x * 2, x + 1])])
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    for examples, batch_size in {7: 5, 64: 16, 101: 20, 128: 50}.items():
        x = np.arange(examples, dtype="float32")[:, None]
        doubled, next_ones = trainer.predict(x, batch_size=batch_size, verbose=0)
        np.testing.assert_array_equal(doubled, x * 2)
        np.testing.assert_array_equal(next_ones, x + 1)


class Spreads(layers.Layer):
    """Each row as a sparse one, and as one of its own length."""

    def call(self, x: Any) -> Any:
        lengths = tf.cast(x[:, 0], tf.int64) % 4
        return tf.sparse.from_dense(x), tf.RaggedTensor.from_tensor(x, lengths=lengths)

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, sparse=True), keras.KerasTensor(x.shape, ragged=True)


@pytest.mark.parametrize("replicas", [1, 3])
def test_predict_keeps_the_order_of_sparse_and_ragged_rows(tiny: Any, replicas: int) -> None:
    inputs = keras.Input((4,))
    trainer = kfit.Trainer(keras.Model(inputs, Spreads()(inputs)), tiny.strategy(replicas))
    x = np.arange(11 * 4, dtype="float32").reshape(11, 4) % 7
    sparse, ragged = trainer.predict(x, batch_size=5, verbose=0)
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), x)
    assert ragged.to_list() == [list(row[: int(row[0]) % 4]) for row in x]


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_of_unknown_rank_are_predicted_one_by_one_as_in_keras(
    tiny: Any, replicas: int
) -> None:
    x, _ = tiny.data(203)
    data = tf.data.Dataset.from_tensor_slices(x).batch(5)
    opened = data.map(lambda x: tf.numpy_function(lambda array: array, [x], x.dtype))
    model = tiny.model()
    expected = model.predict(opened, verbose=0)
    got = kfit.Trainer(model, tiny.strategy(replicas)).predict(opened, verbose=0)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    if replicas == 1:
        unbuilt = keras.Sequential([layers.Dense(3)])
        assert kfit.Trainer(unbuilt, "one_device").predict(opened, verbose=0).shape == (203, 3)
