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


@pytest.mark.parametrize("replicas", [1, 2])
def test_batches_of_other_lengths_are_joined_as_in_keras(tiny: Any, replicas: int) -> None:
    """Executions have one batch at first, and then more, whose rows may be of one length."""
    lengths = [3, 5, 5, 2, 2, 2, 4, 4, 3, 5, 1, 1, 2, 3]
    batches = [np.full((4, length), n, "int32") for n, length in enumerate(lengths)]
    spec = tf.TensorSpec([4, None], tf.int32)
    pipeline = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    model = keras.Sequential([keras.Input((None,)), layers.Embedding(14, 2)])
    expected = model.predict(pipeline, verbose=0)
    got = kfit.Trainer(model, tiny.strategy(replicas)).predict(pipeline, verbose=0)
    assert got.shape.as_list() == expected.shape.as_list()
    assert got.to_list() == expected.to_list()


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_scalar_of_one_batch_stays_a_scalar(tiny: Any, replicas: int) -> None:
    x = keras.Input((1,))
    model = keras.Model(x, {"rows": x * 2, "mean": keras.ops.mean(x)})
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    data = np.arange(40.0, dtype="float32")[:, None]
    assert trainer.predict(data[:4], batch_size=4, verbose=0)["mean"].shape == ()
    assert trainer.predict_on_batch(data[:4])["mean"].shape == ()
    means = trainer.predict(data, batch_size=4, verbose=0)["mean"]
    np.testing.assert_allclose(means, data.reshape(10, 4).mean(1))


def test_data_without_a_batch_is_named(tiny: Any) -> None:
    model = keras.Sequential([keras.Input((1,)), layers.Dense(1)])
    empty = tf.data.Dataset.from_tensors(np.ones((2, 1))).filter(lambda x: False)
    with pytest.raises(ValueError, match="`x` has no batch to predict"):
        kfit.Trainer(model, tiny.strategy(1)).predict(empty, steps=2, verbose=0)


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


@pytest.mark.parametrize("replicas", [1, 2])
def test_functions_may_be_made_eager_between_two_predictions(tiny: Any, replicas: int) -> None:
    """As a debugger needs it: `tf.config.run_functions_eagerly` stops at lines of a layer."""
    seen: list[bool] = []

    class Looks(layers.Layer):
        def call(self, x: Any) -> Any:
            seen.append(hasattr(x, "numpy"))
            return x + 1

    model = keras.Sequential([keras.Input((2,)), Looks()])
    trainer, x = kfit.Trainer(model, tiny.strategy(replicas)), np.ones((8, 2), "float32")
    calls = [
        lambda: trainer.predict(x, batch_size=4, verbose=0),
        lambda: trainer.predict_on_batch(x),
    ]
    for predict in calls:
        predict()
        try:
            tf.config.run_functions_eagerly(True)
            for _ in range(2):
                seen.clear()
                np.testing.assert_array_equal(predict(), x + 1)
                assert seen
                assert all(seen)
        finally:
            tf.config.run_functions_eagerly(False)
        seen.clear()
        predict()
        assert not seen


@pytest.mark.parametrize("replicas", [1, 2])
def test_predictions_may_be_written_to(tiny: Any, replicas: int) -> None:
    trainer = kfit.Trainer(tiny.model(), tiny.strategy(replicas))
    x = tiny.data(8)[0]
    for predicted in (
        trainer.predict_on_batch(x),
        trainer.predict(x, batch_size=8, verbose=0),
        trainer.predict(x, batch_size=4, verbose=0),
    ):
        predicted[0] = 7.0
        assert np.all(predicted[0] == 7.0)


@pytest.mark.parametrize(
    ("compute", "is_told"),
    [
        (lambda p: tf.reduce_mean(p, 0), True),
        (lambda p: tf.reduce_sum(p, 0), True),
        (tf.transpose, True),
        (lambda p: p, False),
        (lambda p: tf.nn.softmax(p)[:, 1:], False),
        (lambda p: tf.map_fn(lambda row: 2.0 * row, p), False),
        (lambda p: tf.argmax(p, 1), False),
    ],
)
def test_predictions_that_are_not_of_examples_are_told(
    tiny: Any, compute: Any, is_told: bool, recwarn: Any
) -> None:
    class Model(keras.Sequential):
        def predict_step(self, data: Any) -> Any:
            return compute(super().predict_step(data))

    trainer = kfit.Trainer(tiny.model(cls=Model), tiny.strategy(2))
    trainer.predict(tiny.data(8)[0], batch_size=4, verbose=0)
    told = [each for each in recwarn if "no row for each example" in str(each.message)]
    assert bool(told) == is_told
