"""The forms of a batch that Python makes, and the kinds of its values."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import scipy.sparse
import tensorflow as tf

import kfit
from tests.inputs.numbered import batches_of, read


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.ones((2, 1)), 1),
        ([np.ones((2, 1)), np.ones(2)], 2),
        ((np.ones((2, 1)), None), 2),
        ((np.ones((2, 1)), np.ones(2), None), 3),
        ((np.ones((2, 1)), np.ones(2), np.ones(2)), 3),
        ((np.ones((2, 1)), np.ones(2), np.ones(2), np.ones(2)), 4),
        ((np.ones((2, 1)), None, np.ones(2)), 3),
        ({"a": np.ones((2, 1)), "b": [np.ones(2), None]}, 1),
    ],
)
def test_forms_of_a_batch(given: Any, expected: int) -> None:
    (got,) = read(batches_of(iter([given])))
    assert len(got) == expected
    if isinstance(given, dict):
        assert list(got[0]) == ["a", "b"]
        assert got[0]["b"][1] is None
    if isinstance(given, tuple):
        assert [part is None for part in got] == [part is None for part in given]


def test_what_is_none_in_one_batch_only_is_told() -> None:
    one = np.ones((2, 1))
    for given in ([(one, None, one), (one, one, None)], [(one, one, None), (one, one, one)]):
        with pytest.raises(Exception, match=r"must have None where .* \('ndarray', 'ndarray', "):
            read(batches_of(iter(given)))


def test_kinds_of_values() -> None:
    given = {
        "double": np.ones((2, 1)),
        "half": np.ones((2, 1), "float16"),
        "whole": np.ones((2, 1), "uint8"),
        "text": np.array(["a", "b"]),
        "tensor": tf.ones((2, 3)),
        "ragged": tf.ragged.constant([[1], [2, 3]]),
        "sparse": scipy.sparse.csr_matrix(np.eye(2, dtype="float32")),
    }
    ((got,),) = read(batches_of(iter([given])))
    dtypes = {name: value.dtype.name for name, value in got.items()}
    assert dtypes.pop("text") == "string"
    assert dtypes == {
        "double": "float64",
        "half": "float16",
        "whole": "uint8",
        "tensor": "float32",
        "ragged": "int32",
        "sparse": "float32",
    }
    assert got["ragged"].to_list() == [[1], [2, 3]]
    np.testing.assert_array_equal(tf.sparse.to_dense(got["sparse"]), np.eye(2))


def test_batches_may_differ_in_their_inner_lengths(tiny: Any) -> None:
    def sentences() -> Iterator[Any]:
        for length in (3, 5, 4, 7):
            yield np.ones((4, length), "int64"), np.ones((4, 1))

    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        pooling = keras.layers.GlobalAveragePooling1D()
        layers = [keras.layers.Embedding(3, 2), pooling, keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((None,)), *layers])
        model.compile("sgd", "mse")
        return model

    one, many = made(), made()
    one.fit(sentences(), verbose=0)
    kfit.Trainer(many, tiny.strategy(2)).fit(sentences(), verbose=0)
    assert tiny.distance(one, many) < 1e-6


@pytest.mark.long
def test_ragged_batches_keep_their_uniform_inner_dimensions(tiny: Any) -> None:
    def ragged() -> Iterator[Any]:
        for lengths in ([3, 1, 4], [2, 2, 1], [1, 5, 1]):
            rows = np.arange(3.0 * sum(lengths), dtype="float32").reshape(-1, 3) / 30
            yield tf.RaggedTensor.from_row_lengths(rows, lengths), np.ones((3, 1), "float32")

    class Sums(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = keras.layers.Dense(1, use_bias=False)

        def build(self, input_shape: Any) -> None:
            assert tuple(input_shape) == (None, None, 3)
            self.built = True

        def call(self, x: Any) -> Any:
            dense = x.to_tensor() if isinstance(x, tf.RaggedTensor) else x
            return keras.ops.sum(self.out(dense), 1)

    losses = []
    for replicas in (1, 2):
        keras.utils.set_random_seed(1)
        model = Sums()
        model.compile("sgd", "mse")
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        losses.append(trainer.fit(ragged(), verbose=0).history["loss"])
    keras.utils.set_random_seed(1)
    plain = Sums()
    plain.compile("sgd", "mse")
    expected = plain.fit(ragged(), verbose=0).history["loss"]
    assert losses == [pytest.approx(expected, rel=1e-5)] * 2
    deeper = tf.ragged.stack([tf.ones((2, 3)), tf.ones((1, 3))])
    uniform = tf.RaggedTensor.from_uniform_row_length(tf.ragged.constant([[1], [2, 3]]), 1)
    ((got, other),) = read(batches_of(iter([(deeper, uniform)])))
    assert (got.to_list(), other.to_list()) == (deeper.to_list(), uniform.to_list())


def test_arrays_of_a_batch_that_hold_other_examples_are_told(tiny: Any) -> None:
    x, y = tiny.data(8)

    def uneven(rows: int) -> Iterator[Any]:
        yield x, y
        yield x, y[:rows]

    for rows in (7, 1):
        says = rf"must yield batches whose parts all hold the same.*\(8, \d\), \({rows},"
        with pytest.raises(ValueError, match=says):
            kfit.Trainer(tiny.model(), tiny.strategy(2)).fit(uneven(rows), verbose=0)
    pipeline = tf.data.Dataset.from_tensors((x, y[:7]))
    with pytest.raises(ValueError, match=r"all hold the same number of examples.*\[8, 7\]"):
        kfit.Trainer(tiny.model(), tiny.strategy(2)).fit(pipeline, verbose=0)
    undeclared = keras.Sequential([keras.layers.Flatten()])  # it takes any number of dimensions
    with pytest.raises(ValueError, match="a scalar cannot be divided among replicas"):
        kfit.Trainer(undeclared, tiny.strategy(2)).predict(tf.data.Dataset.range(3), verbose=0)
