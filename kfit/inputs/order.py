"""Computes the order of shuffled examples, and which rows of a batch each replica gets.

The order of epoch e is a permutation that depends only on the seed and on e. The permutation is
computed position by position and never stored. So memory does not grow with the data set, and
resuming at any step costs the same.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from kfit.internals.runtime import runtime

_ROUNDS = 8
_MIX_1, _MIX_2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ODD = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


class Rows(NamedTuple):
    """A range of rows of a global batch.

    Attributes:
        start: The first row; an int, or a scalar tensor in a graph.
        stop: The row after the last one; of the same type as `start`.
    """

    start: Any
    stop: Any


def rows_of_replica(examples: Any, replica: int, num_replicas: int) -> Rows:
    """Returns the rows of a global batch that belong to one replica.

    The batch is split into one block of consecutive rows for each replica, in the order of the
    replicas. The sizes of the blocks differ by at most one. If there are fewer examples than
    replicas, some replicas get no row.

    Args:
        examples: The number of examples in the global batch, an int or a scalar int64 tensor.
        replica: The number of the replica among those of all tasks, from 0.
        num_replicas: The number of replicas of all tasks.
    """
    return Rows(replica * examples // num_replicas, (replica + 1) * examples // num_replicas)


def rows_fed(examples: Any, replica: int, num_replicas: int) -> Rows:
    """Returns the rows that a replica computes on, which are one row or more.

    Usually they are the rows that belong to the replica. In a batch with fewer examples than
    replicas, a replica without rows computes on a row of another replica, since some code fails on
    an empty batch: `x[0]`, for example, and Keras' `Equalization`. The results of that row are
    discarded (see `kfit.exactness.replica_context.Replica`).

    Args:
        examples: The number of examples in the global batch, at least 1; an int or a scalar int64
            tensor.
        replica: The number of the replica among those of all tasks, from 0.
        num_replicas: The number of replicas of all tasks.
    """
    start, stop = rows_of_replica(examples, replica, num_replicas)
    least = start + 1
    if isinstance(stop, int):
        return Rows(start, max(stop, least))
    return Rows(start, tf.maximum(stop, tf.minimum(least, examples)))


def permute(positions: tf.Tensor, size: tf.Tensor, seed: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
    """Returns which examples are at the given positions of an epoch's shuffled order.

    The permutation is a generalised Feistel network over Z_a x Z_b with a * b >= size, with
    cycle-walking back into the domain (Black and Rogaway, "Ciphers with arbitrary finite domains",
    CT-RSA 2002). The network's round function is the finaliser of SplitMix64 (Steele, Lea and
    Flood, OOPSLA 2014).

    Args:
        positions: int64 tensor of any shape, values in [0, size).
        size: The number of examples; int64, a scalar or of a shape that broadcasts to `positions`.
        seed: The seed of the order; int64 scalar.
        epoch: The number of the epoch, or another number that selects an order; int64, with a shape
            like that of `size`.

    Returns:
        The indices of the examples: an int64 tensor of the shape of `positions`. For all positions
        together, the indices are a permutation of [0, size).
    """
    permuted: tf.Tensor = _graph(runtime())(positions, size, seed, epoch)
    return permuted


@lru_cache(maxsize=1)
def _graph(_: object) -> Any:
    """Returns `_permute` as a `tf.function`, which is cached.

    Args:
        _: TensorFlow's runtime. A reset makes another runtime, for which a new function is made.
    """
    return tf.function(_permute, reduce_retracing=True, autograph=False)


def _permute(positions: tf.Tensor, size: tf.Tensor, seed: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
    left_size = tf.cast(tf.math.ceil(tf.sqrt(tf.cast(size, tf.float64))), tf.int64)
    right_size = (size + left_size - 1) // left_size
    # A NumPy array, since TensorFlow would convert Python's integers through float64.
    rounds = tf.constant(np.array([_ODD * (i + 1) & _WORD for i in range(_ROUNDS)], "uint64"))
    rounds = tf.reshape(rounds, tf.concat([[_ROUNDS], tf.ones_like(tf.shape(epoch))], 0))
    keys = _mix(_bits(seed) ^ _mix(_bits(epoch) * _word(_ODD) + rounds))
    any_shape = tf.TensorShape(None)  # the shape may grow, since `size` and `epoch` broadcast

    # A loop over the rounds keeps the graph small, which is traced and optimized faster.
    def exchange(i: Any, one: Any, two: Any, one_size: Any, two_size: Any) -> tuple[Any, ...]:
        two = (two + _below(_mix(_bits(one) ^ keys[i]), two_size)) % two_size
        return i + 1, two, one, two_size, one_size

    def walk(values: tf.Tensor) -> tf.Tensor:
        halves = values % left_size, values // left_size, left_size, right_size
        _, left, right, *_ = tf.while_loop(
            lambda i, *_: i < _ROUNDS,
            exchange,
            (tf.constant(0), *halves),
            (tf.TensorShape([]), *[any_shape] * 4),
        )
        return right * left_size + left

    def walk_on(values: tf.Tensor, arrived: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        values = tf.where(arrived, values, walk(values))
        return values, values < size

    def some_are_outside(values: tf.Tensor, arrived: tf.Tensor) -> tf.Tensor:
        return tf.logical_not(tf.reduce_all(arrived))

    nowhere = tf.zeros_like(positions, tf.bool)
    return tf.while_loop(some_are_outside, walk_on, (positions, nowhere), (any_shape, any_shape))[0]


def _word(value: int) -> tf.Tensor:
    return tf.constant(value & _WORD, tf.uint64)


def _bits(value: tf.Tensor) -> tf.Tensor:
    return tf.bitcast(tf.cast(value, tf.int64), tf.uint64)


def _mix(word: tf.Tensor) -> tf.Tensor:
    shift = tf.bitwise.right_shift
    word = (word ^ shift(word, _word(30))) * _word(_MIX_1)
    word = (word ^ shift(word, _word(27))) * _word(_MIX_2)
    return word ^ shift(word, _word(31))


def _below(word: tf.Tensor, bound: tf.Tensor) -> tf.Tensor:
    # 63 bits, so that the signed remainder is never negative.
    return tf.bitcast(tf.bitwise.right_shift(word, _word(1)), tf.int64) % bound
