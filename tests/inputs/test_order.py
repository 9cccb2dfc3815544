"""The order of examples and their split over the replicas."""

import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.order import permute, rows_of_replica


def order(size: int, seed: int = 0, epoch: int = 0) -> np.ndarray:
    arguments = [tf.constant(value, tf.int64) for value in (size, seed, epoch)]
    return permute(tf.range(size, dtype=tf.int64), *arguments).numpy()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8, 16, 31, 100, 101, 1000, 1797])
def test_an_epoch_holds_every_example_once(size: int) -> None:
    for epoch in range(3):
        assert sorted(order(size, epoch=epoch)) == list(range(size))


def test_positions_of_a_huge_data_set_need_no_table() -> None:
    size, seed, epoch = (tf.constant(value, tf.int64) for value in (10**12, 3, 5))
    positions = tf.constant([0, 1, 10**12 - 1], tf.int64)
    examples = permute(positions, size, seed, epoch).numpy()
    assert len(set(examples)) == 3
    assert all(0 <= example < 10**12 for example in examples)


def test_seed_and_epoch_change_the_order_and_nothing_else_does() -> None:
    base = order(101, seed=1, epoch=1)
    assert (base == order(101, seed=1, epoch=1)).all()
    assert (base != order(101, seed=2, epoch=1)).any()
    assert (base != order(101, seed=1, epoch=2)).any()


def test_each_row_may_have_its_own_epoch() -> None:
    positions = tf.tile(tf.range(10, dtype=tf.int64)[None], [2, 1])
    epochs = tf.constant([[4], [5]], tf.int64)
    rows = permute(positions, tf.constant(10, tf.int64), tf.constant(7, tf.int64), epochs).numpy()
    assert (rows[0] == order(10, 7, 4)).all()
    assert (rows[1] == order(10, 7, 5)).all()


def test_all_orders_of_few_examples_are_equally_likely() -> None:
    counts: dict[tuple[int, ...], int] = {}
    draws = 2400
    for seed in range(draws):
        drawn = tuple(order(4, seed))
        counts[drawn] = counts.get(drawn, 0) + 1
    expected = draws / 24
    assert len(counts) == 24
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert chi_square < 49.7  # 23 degrees of freedom, p = 0.001


def test_neighbours_are_not_related() -> None:
    steps = np.diff(order(10_007)) % 10_007
    # Random steps of a permutation are nearly uniform: no step may be frequent.
    assert np.bincount(steps).max() < 12
    assert abs(np.corrcoef(order(10_007)[:-1], order(10_007)[1:])[0, 1]) < 0.05


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
def test_rows_of_the_replicas_partition_a_batch(replicas: int) -> None:
    for examples in (0, 1, 2, 5, 6, 20, 64, 101):
        rows = [rows_of_replica(examples, replica, replicas) for replica in range(replicas)]
        assert [row for part in rows for row in range(*part)] == list(range(examples))
        sizes = [part.stop - part.start for part in rows]
        assert max(sizes) - min(sizes) <= 1
