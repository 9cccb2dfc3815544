"""The order of examples is a permutation that looks random, and a batch is shared without a gap."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.order import permute, rows_of_replica

SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 10, 16, 17, 99, 100, 101, 1000, 1023, 4097, 65537]


def order(size: int, seed: int = 3, epochs: int | list[int] = 0) -> np.ndarray:
    """The whole order of one epoch, or a row for each of several."""
    keys = tf.constant(epochs, tf.int64)
    positions = tf.range(size, dtype=tf.int64)
    if keys.shape.rank:
        positions = tf.broadcast_to(positions, [keys.shape[0], size])
        keys = keys[:, None]
    return permute(
        positions, tf.constant(size, tf.int64), tf.constant(seed, tf.int64), keys
    ).numpy()


@pytest.mark.parametrize("size", SIZES)
def test_an_order_holds_every_example_once(size: int) -> None:
    for seed in (0, 1, -1, 2**62, -(2**63)):
        for row in order(size, seed, [0, 1, 12345]):
            np.testing.assert_array_equal(np.sort(row), np.arange(size))


def test_sizes_may_differ_between_positions() -> None:
    sizes = np.array([[3], [5], [8]])
    positions = np.minimum(np.arange(8), sizes - 1)
    got = permute(*(tf.constant(v, tf.int64) for v in (positions, sizes, 7, 0))).numpy()
    for row, size in zip(got, sizes[:, 0], strict=True):
        assert sorted(row[:size]) == list(range(size))
        np.testing.assert_array_equal(row[:size], order(size, 7, 0))


def test_the_order_is_a_function_of_seed_and_epoch() -> None:
    orders = {(s, e): tuple(order(50, s, e)) for s in range(20) for e in range(20)}
    assert len(set(orders.values())) == 400
    assert orders[3, 4] == tuple(order(50, 3, 4))


def test_any_part_of_an_order_can_be_had_alone() -> None:
    whole = order(1000, 5, 2)
    positions = tf.constant([999, 3, 3, 500], tf.int64)
    part = permute(positions, *(tf.constant(v, tf.int64) for v in (1000, 5, 2)))
    np.testing.assert_array_equal(part, whole[[999, 3, 3, 500]])


def test_huge_data_sets_have_an_order_too() -> None:
    size = 10**12
    positions = tf.constant(np.linspace(0, size - 1, 10_000).astype("int64"))
    got = permute(positions, *(tf.constant(v, tf.int64) for v in (size, 1, 1))).numpy()
    assert len(set(got)) == 10_000
    assert got.min() >= 0
    assert got.max() < size
    assert abs(got.mean() / size - 0.5) < 0.02


def chi_square(counts: np.ndarray) -> float:
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())


@pytest.mark.parametrize("size", [2, 3, 5, 8, 12])
def test_every_example_comes_to_every_position_as_often(size: int) -> None:
    orders = order(size, 11, list(range(4000)))
    counts = np.stack([np.bincount(column, minlength=size) for column in orders.T])
    freedom = (size - 1) ** 2
    # Five standard deviations of the chi-square distribution; the seed is fixed.
    assert chi_square(counts) < freedom + 5 * np.sqrt(2 * freedom)


def test_all_orders_of_four_come_as_often() -> None:
    orders = order(4, 1, list(range(4800)))
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 24
    assert chi_square(counts) < 23 + 5 * np.sqrt(46)


@pytest.mark.parametrize("size", [1000, 1024, 4099])
def test_an_order_has_no_obvious_structure(size: int) -> None:
    def correlation(one: np.ndarray, other: np.ndarray) -> float:
        return abs(float(np.corrcoef(one, other)[0, 1])) * np.sqrt(size)

    rows = order(size, 2, [0, 1, 2])
    for row in rows:
        steps = np.diff(row) % size
        # Of random differences 1 - 1/e are distinct, and hardly any comes more than seven times.
        distinct = len(np.unique(steps)) / size
        assert abs(distinct - (1 - np.exp(-1))) < 0.05
        assert np.bincount(steps).max() <= 8
        assert correlation(row, np.arange(size)) < 4
        assert correlation(row[1:], row[:-1]) < 4
    assert correlation(rows[0], rows[1]) < 4
    assert correlation(order(size, 2, 0), order(size, 3, 0)) < 4
    assert (rows[0] == rows[1]).sum() < 8


@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7, 8])
def test_replicas_share_a_batch_without_gap_or_overlap(replicas: int) -> None:
    for examples in range(30):
        rows = [rows_of_replica(examples, replica, replicas) for replica in range(replicas)]
        assert rows[0].start == 0
        assert rows[-1].stop == examples
        assert all(one.stop == other.start for one, other in pairwise(rows))
        sizes = {stop - start for start, stop in rows}
        assert max(sizes) - min(sizes) <= 1
        in_graph = rows_of_replica(tf.constant(examples, tf.int64), replicas - 1, replicas)
        assert (int(in_graph.start), int(in_graph.stop)) == rows[-1]


@pytest.mark.long
def test_the_order_outlives_the_runtime_it_was_first_drawn_in(tmp_path: Path) -> None:
    """Keras' own tests renew TensorFlow's runtime in the middle of a process."""
    program = """
import tensorflow as tf
from tensorflow.python.eager import context
from kfit.inputs.order import permute

def drawn():
    def at(position):
        return permute(position[None], *(tf.constant(v, tf.int64) for v in (9, 5, 2)))
    return [int(example[0]) for example in tf.data.Dataset.range(9).map(at)]

before = drawn()
context._reset_context()
assert drawn() == before
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path, timeout=120)
