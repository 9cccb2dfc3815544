"""What `predict` returns: in the order of the rows, whichever replica had them."""

import warnings
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


@pytest.mark.parametrize("replicas", sweep([2, 1]))
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


@pytest.mark.parametrize("replicas", sweep([2, 1]))
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


@pytest.mark.parametrize("replicas", sweep([3, 1]))
def test_predict_keeps_the_order_of_sparse_and_ragged_rows(tiny: Any, replicas: int) -> None:
    inputs = keras.Input((4,))
    trainer = kfit.Trainer(keras.Model(inputs, Spreads()(inputs)), tiny.strategy(replicas))
    x = np.arange(11 * 4, dtype="float32").reshape(11, 4) % 7
    sparse, ragged = trainer.predict(x, batch_size=5, verbose=0)
    np.testing.assert_array_equal(tf.sparse.to_dense(sparse), x)
    assert ragged.to_list() == [list(row[: int(row[0]) % 4]) for row in x]


@pytest.mark.parametrize("replicas", sweep([2, 1]))
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


@pytest.mark.parametrize("replicas", sweep([2, 1]))
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


@pytest.mark.parametrize("replicas", sweep([1, 2]))
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


class Computes(keras.Model):
    """Predicts what a function computes of the rows of a layer and of a table."""

    def __init__(self, compute: Any) -> None:
        super().__init__()
        self.compute = compute
        self.rows = layers.Dense(4, kernel_initializer=keras.initializers.GlorotUniform(seed=1))
        self.table = self.add_weight(
            shape=(5, 4), initializer=keras.initializers.RandomNormal(seed=1)
        )

    def call(self, x: Any) -> Any:
        return self.rows(x)

    def predict_step(self, data: Any) -> Any:
        return self.compute(super().predict_step(data), self.table)


def without_rows(p: Any, table: Any) -> Any:
    number = tf.cast(tf.shape(p)[0], p.dtype)
    return {
        "means": [tf.reduce_mean(p, 0), tf.reduce_mean(p, 0, keepdims=True) + 1],
        "sums": (tf.reduce_sum(p, 0), 1 - tf.reduce_sum(p, 0) / 2, table[0] * number),
        "mixed": tf.reduce_sum(p, 0) + tf.reduce_mean(p, 0) + table[0],
        "stacked": tf.stack([tf.reduce_mean(p), tf.reduce_sum(p), number]),
        "products": tf.matmul(p, p, transpose_a=True),
        "counts": tf.reduce_sum(tf.cast(p > 0, "int32"), 0) + 1,
        "histogram": tf.math.bincount(tf.argmax(p, 1, output_type="int32"), minlength=4),
        "number": tf.shape(p)[0] - 1,
        "equal": [table, table * 2, tf.constant(["a", "b"]), np.arange(3), "text"],
        "rows": p,
    }


def with_rows_elsewhere(p: Any, table: Any) -> Any:
    return {
        "last": tf.transpose(p),
        "middle": tf.stack([p, 2 * p, 3 * p]),
        "slices": [p[:4], p[1], p[-1], p[::2], p[-3:, 1]],
        "rows": p[:, 1:],
    }


def assert_as_in_keras(got: Any, expected: Any) -> None:
    got, expected = keras.tree.flatten(got), keras.tree.flatten(expected)
    for one, other in zip(got, expected, strict=True):
        if isinstance(other, tf.RaggedTensor):
            one, other = one.to_tensor(), other.to_tensor()
        if np.asarray(other).dtype.kind in "fiu":
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
        else:
            np.testing.assert_array_equal(one, other)


@pytest.mark.long
@pytest.mark.parametrize("compute", [without_rows, with_rows_elsewhere])
def test_predictions_without_a_row_for_each_example_are_those_of_one_device(
    tiny: Any, compute: Any
) -> None:
    """The last batch has two examples for three replicas."""
    x = tiny.data(24)[0]
    one, many = Computes(compute), Computes(compute)
    trainer = kfit.Trainer(many, tiny.strategy(3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predicted = trainer.predict(x, batch_size=11, verbose=0), trainer.predict_on_batch(x[:7])
    assert_as_in_keras(predicted[0], one.predict(x, batch_size=11, verbose=0))
    assert_as_in_keras(predicted[1], one.predict_on_batch(x[:7]))


@pytest.mark.parametrize(
    "compute", [lambda p: keras.ops.sum(p, 0), keras.ops.transpose, keras.ops.sum]
)
def test_functional_models_may_predict_without_a_row_for_each_example(
    tiny: Any, compute: Any
) -> None:
    inputs = keras.Input((4,))
    model = keras.Model(inputs, {"rows": inputs, "other": compute(layers.Dense(3)(inputs))})
    x = tiny.data(22)[0]
    expected = model.predict(x, batch_size=11, verbose=0)
    got = kfit.Trainer(model, tiny.strategy(2)).predict(x, batch_size=11, verbose=0)
    assert_as_in_keras(got, expected)


@pytest.mark.long
def test_rows_of_ragged_examples_stay_rows(tiny: Any) -> None:
    """Their number is a constant in the graph, where a sum over each row looks like bins."""

    class Sums(keras.Model):
        def call(self, x: Any) -> Any:
            return tf.reduce_sum(x, 1), tf.reduce_mean(x, 1), x.row_lengths(), x.to_tensor()[:, :1]

    ragged = tf.RaggedTensor.from_row_lengths(tf.range(1.0, 30.0), [2, 1, 6, 3, 4, 1, 5, 7])
    data = tf.data.Dataset.from_tensor_slices(ragged).batch(4)
    model = Sums()
    expected = model.predict(data, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = kfit.Trainer(model, tiny.strategy(3)).predict(data, verbose=0)
    assert_as_in_keras(got, expected)


@pytest.mark.parametrize(
    ("compute", "is_told"),
    sweep(
        [
            (lambda p: tf.reduce_max(p, 0), True),
            (lambda p: tf.reduce_any(p > 0, 0), True),
            (lambda p: tf.sqrt(tf.reduce_mean(p * p, 0)), True),
            (lambda p: p, False),
            (lambda p: tf.nn.softmax(p)[:, 1:], False),
            (lambda p: tf.map_fn(lambda row: 2.0 * row, p), False),
            (lambda p: tf.argmax(p, 1), False),
            (lambda p: tf.boolean_mask(p, p[:, 0] > 0), False),
            (lambda p: tf.ensure_shape(tf.numpy_function(np.abs, [p], p.dtype), [None, 4]), False),
        ]
    ),
)
def test_predictions_that_are_not_of_examples_are_told(
    tiny: Any, compute: Any, is_told: bool, recwarn: Any
) -> None:
    trainer = kfit.Trainer(Computes(lambda p, table: compute(p)), tiny.strategy(2))
    trainer.predict(tiny.data(8)[0], batch_size=4, verbose=0)
    told = [each for each in recwarn if "A prediction" in str(each.message)]
    assert bool(told) == is_told


def grouped(rows: Any) -> tuple[Any, Any]:
    """The means of groups of rows, as of the nodes of each graph; and the group of each row."""
    numbers = tf.sort(tf.cast(rows[:, 0] > 0, tf.int32))
    return tf.math.segment_mean(rows, numbers), numbers


@pytest.mark.parametrize(
    ("compute", "message"),
    sweep(
        [
            (lambda p: p - tf.reduce_mean(p, 0), "A prediction combines the examples"),
            (lambda p: p[::-1], "A prediction combines the examples"),
            (lambda p: tf.concat([p, -p], 0), "A prediction has a row for each example, but"),
            (lambda p: tf.tile(p, [2, 1]), "A prediction has a row for each example, but"),
            (lambda p: grouped(p)[0], "A prediction has a row for each example, but"),
            (lambda p: tf.gather(*grouped(p)), "A prediction has a row for each example, but"),
        ]
    ),
)
def test_predictions_of_rows_that_depend_on_others_are_told(
    tiny: Any, compute: Any, message: str
) -> None:
    trainer = kfit.Trainer(Computes(lambda p, table: compute(p)), tiny.strategy(2))
    with pytest.warns(UserWarning, match=message):
        trainer.predict(tiny.data(8)[0], batch_size=4, verbose=0)


def test_without_a_graph_predictions_of_another_size_are_told(tiny: Any) -> None:
    model = Computes(lambda p, table: [p, table, tf.reshape(p, [-1])])
    model.compile(run_eagerly=True)
    x = tiny.data(6)[0]
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert_as_in_keras(trainer.predict_on_batch(x), model.predict_on_batch(x))
    model.compute = lambda p, table: tf.reduce_mean(p, 0)
    with pytest.warns(UserWarning, match="no row for each example"):
        trainer.predict_on_batch(x)
    model.compute = lambda p, table: tf.reduce_sum(p)
    with pytest.warns(UserWarning, match="kfit cannot read"):
        trainer.predict_on_batch(x)
