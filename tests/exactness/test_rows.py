"""Rows of dense, ragged and sparse batches, of a known number and of an unknown one."""

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.exactness.rows import number_of_rows, of_unknown_size, rows_of_element, take_rows

ROWS = np.arange(1, 13, dtype="float32").reshape(4, 3)
MAKE = {
    "dense": tf.constant,
    "ragged": lambda rows: tf.RaggedTensor.from_tensor(rows, lengths=[3, 3, 3, 3]),
    "sparse": tf.sparse.from_dense,
}


def dense(batch: Any) -> np.ndarray:
    if isinstance(batch, tf.SparseTensor):
        return tf.sparse.to_dense(batch).numpy()
    return (batch.to_tensor() if isinstance(batch, tf.RaggedTensor) else batch).numpy()


@pytest.mark.parametrize("kind", ["ragged", "sparse"])
def test_the_number_of_ragged_and_sparse_rows_can_be_hidden(kind: str) -> None:
    sizes, sums = [], []

    @tf.function(autograph=False)
    def graph() -> tf.Tensor:
        hidden = of_unknown_size(MAKE[kind](tf.constant(ROWS)))
        sizes.append(hidden.shape.as_list())
        sums.append(tf.get_static_value(number_of_rows(hidden)))
        return hidden

    np.testing.assert_array_equal(dense(graph()), ROWS)
    assert sizes[0][0] is None
    assert sums == [None]


@pytest.mark.parametrize("kind", MAKE)
def test_rows_are_counted_and_taken(kind: str) -> None:
    batch = MAKE[kind](ROWS)
    assert int(number_of_rows(batch)) == 4
    np.testing.assert_array_equal(dense(take_rows(batch, 1, 2)), ROWS[1:3])
    start, size = tf.constant(3, tf.int64), tf.constant(1, tf.int64)
    np.testing.assert_array_equal(dense(take_rows(batch, start, size)), ROWS[3:])
    assert int(number_of_rows(take_rows(batch, 4, 0))) == 0


def test_a_number_that_the_shape_tells_is_one_of_python() -> None:
    assert type(number_of_rows(tf.constant(ROWS))) is int
    part = take_rows(tf.sparse.from_dense(ROWS), 1, 2)
    assert part.shape == (2, 3)


def test_a_number_can_be_hidden_from_a_graph() -> None:
    seen = []

    @tf.function(autograph=False)
    def graph(batch: tf.Tensor) -> tf.Tensor:
        hidden = of_unknown_size(batch)
        seen.append(hidden.shape)
        return hidden

    np.testing.assert_array_equal(graph(tf.constant(ROWS)), ROWS)
    assert seen[0].as_list() == [None, 3]
    graph.get_concrete_function(tf.TensorSpec(None, "float32"))
    assert seen[1].rank is None
    assert of_unknown_size(ROWS) is ROWS


def test_scalars_have_no_rows() -> None:
    number = tf.constant(0.5)
    assert rows_of_element({"a": number, "x": tf.constant(ROWS), "y": tf.ones(3)}) == 4
    assert rows_of_element((number, number)) == 1

    @tf.function(autograph=False)
    def graph(unknown: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
        return tf.cast(rows_of_element((unknown, batch)), tf.int64)

    unknown = tf.TensorSpec(None, "float32")
    traced = graph.get_concrete_function(unknown, tf.TensorSpec([None, 3], "float32"))
    assert int(traced(number, tf.constant(ROWS))) == 4
