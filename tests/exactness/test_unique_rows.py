"""Sparse gradients whose indices a batch has once; `cases/layers.py` has whole trainings."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.exactness.unique_rows import UniqueRows
from tests.exactness.cases.data import numbers, words


def test_rows_of_one_index_are_added_up_but_those_of_two_uses_stay_apart() -> None:
    @tf.function
    def summed() -> Any:
        table = tf.ones((5, 2))
        with tf.GradientTape() as tape:
            tape.watch(table)
            first = tf.gather(table, tf.unique(tf.constant([3, 1, 3, 1]))[0])
            second = tf.gather(table, tf.unique(tf.constant([1, 1, 4]))[0])
            loss = tf.reduce_sum(first) + 10 * tf.reduce_sum(second)
        grad = tape.gradient(loss, table)
        way = UniqueRows.of(grad)
        assert way is not None
        sent = way.sent(grad)
        # Two replicas with equal rows.
        both = tf.IndexedSlices(
            tf.concat([sent.values] * 2, 0), tf.concat([sent.indices] * 2, 0), sent.dense_shape
        )
        total = way.of_batch(both, grad)
        assert total.indices.dtype == grad.indices.dtype
        return total.indices, total.values

    indices, values = summed()
    found = sorted(zip(indices.numpy().tolist(), values.numpy()[:, 0].tolist(), strict=True))
    assert found == [(1, 2), (1, 20), (3, 2), (4, 20)]


class Both(keras.layers.Layer):
    """Looks up the rows of one table by unique indices, and by those of the examples."""

    def build(self, shape: Any) -> None:
        self.table = self.add_weight(shape=(9, 3), initializer="uniform")

    def call(self, inputs: Any) -> Any:
        different, places = tf.unique(tf.reshape(inputs, [-1]))
        found = tf.gather(tf.gather(self.table, different), places)
        every = tf.reshape(found, [-1, 5, 3])
        return tf.reduce_sum(every + tf.gather(self.table, inputs), axis=1)


@pytest.mark.long
def test_a_weight_with_rows_of_both_kinds_is_warned_of(tiny: Any) -> None:
    model = keras.Sequential([keras.layers.Input((5,), dtype="int64"), Both()])
    model.compile("adam", "mse")
    with pytest.warns(UserWarning, match="A weight is used with a sparse input, or by unique"):
        kfit.Trainer(model, tiny.strategy(2)).fit(words(8), numbers(8, 3), verbose=0)


def test_places_and_counts_are_not_unique() -> None:
    """`tf.unique` also returns where each value is, and its kin how often."""

    @tf.function
    def found(values: Any, rows: Any) -> None:
        numbers = tf.unique(values), tf.unique_with_counts(values)
        of_rows = tf.raw_ops.UniqueV2(x=rows, axis=[0])  # rows are different, not their elements
        others = (numbers[0].idx, numbers[1].idx, numbers[1].count, of_rows.y)
        shape = tf.constant([9, 2])
        for indices in others:
            flat = tf.reshape(indices, [-1])
            grad = tf.IndexedSlices(tf.ones((tf.size(flat), 2)), flat, shape)
            assert UniqueRows.of(grad) is None
        for indices in (numbers[0].y, tf.cast(numbers[1].y, "int64")):
            grad = tf.IndexedSlices(tf.ones((tf.size(indices), 2)), indices, shape)
            assert UniqueRows.of(grad) is not None

    found(np.array([1, 1, 2]), np.array([[1, 1], [1, 2]]))


def test_dense_gradients_and_those_of_examples_are_left_alone() -> None:
    @tf.function
    def found(words: Any) -> None:
        assert UniqueRows.of(tf.ones((2, 2))) is None
        assert UniqueRows.of(tf.IndexedSlices(tf.ones((2, 2)), words, tf.constant([5, 2]))) is None

    found(np.array([1, 1]))
