"""The order of exchanges in graphs, with a ring that only notes what it is asked for."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.distribute.ring_ops import RingOps


class Notes:
    """A ring of one worker."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def sum(self, *arrays: np.ndarray) -> list[np.ndarray]:
        self.sizes.append(sum(array.size for array in arrays))
        return [array * 1 for array in arrays]

    gather = sum


def late(size: int) -> tf.Tensor:
    """A tensor that is there after everything that does not wait for it."""

    def wait() -> np.ndarray:
        time.sleep(0.05)
        return np.ones(size, "float32")

    # Without effects, so that TensorFlow does not keep it in order by itself.
    made = tf.numpy_function(wait, [], tf.float32, stateful=False)
    made.set_shape([size])
    return made


def straight(ops: RingOps) -> Any:
    return ops.sum(late(1)), ops.sum(tf.ones(2)), ops.gather(tf.ones(3))


def after_a_loop(ops: RingOps) -> Any:
    def body(i: tf.Tensor) -> list[tf.Tensor]:
        (total,) = ops.sum(late(1))
        return [i + tf.cast(total[0], tf.int32)]

    return tf.while_loop(lambda i: i < 2, body, [tf.constant(0)]), ops.sum(tf.ones(2))


def around_a_conditional(ops: RingOps) -> Any:
    before = ops.sum(late(1))
    chosen = tf.cond(tf.random.uniform([]) < 2, lambda: ops.sum(late(2)), lambda: [tf.ones(2)])
    return before, chosen, ops.sum(tf.ones(3))


def where_the_branch_has_none(ops: RingOps) -> Any:
    chosen = tf.cond(tf.random.uniform([]) > 2, lambda: ops.sum(late(9)), lambda: [tf.ones(9)])
    return ops.sum(late(1)), chosen, ops.sum(tf.ones(2))


def in_functions(ops: RingOps) -> Any:
    slow = tf.function(lambda: ops.sum(late(1)), autograph=False)
    quick = tf.function(lambda: ops.sum(tf.ones(2)), autograph=False)
    return slow(), quick(), ops.sum(tf.ones(3))


def of_gradients(ops: RingOps) -> Any:
    with tf.GradientTape() as tape:
        x = late(1)
        tape.watch(x)
        y = tf.reduce_sum(tf.concat([*ops.sum(x), tf.ones(1)], 0))
    return tape.gradient(y, x), ops.sum(tf.ones(2))


def test_who_guesses_the_name_of_the_function_does_not_reach_the_ring() -> None:
    """A caller of TensorFlow's server can have any graph run, and the names are numbers."""
    notes = Notes()
    ops = RingOps(notes)  # type: ignore[arg-type]  # it needs no more of a ring
    traced = tf.function(lambda: ops.sum(tf.ones(2))).get_concrete_function()
    (node,) = [each for each in traced.graph.get_operations() if each.type == "PyFunc"]

    def call(key: int) -> Any:
        inputs = [tf.constant(key, tf.int64), tf.constant(0, tf.int64), tf.ones(5)]
        token, kinds = node.get_attr("token"), [tf.int64, tf.float32]
        return tf.raw_ops.PyFunc(input=inputs, token=token, Tout=kinds)

    for key in (0, ops._key + 1, RingOps(notes)._key):  # type: ignore[arg-type]
        with pytest.raises(tf.errors.OpError, match="was not made by the program of this worker"):
            call(key)
    assert notes.sizes == []
    call(ops._key)
    assert notes.sizes == [5]


@pytest.mark.parametrize(
    ("program", "sizes"),
    [
        (straight, [1, 2, 3]),
        (after_a_loop, [1, 1, 2]),
        (around_a_conditional, [1, 2, 3]),
        (where_the_branch_has_none, [1, 2]),
        (in_functions, [1, 2, 3]),
        (of_gradients, [1, 1, 2]),
    ],
)
@pytest.mark.parametrize("graph", [True, False])
def test_exchanges_are_taken_in_the_order_of_the_program(
    program: Callable[[RingOps], Any], sizes: list[int], graph: bool
) -> None:
    notes = Notes()
    ops = RingOps(notes)  # type: ignore[arg-type]  # it needs no more of a ring

    def run() -> Any:
        return program(ops)

    called = tf.function(run, autograph=False) if graph else run
    for _ in range(3):
        notes.sizes.clear()
        called()
        assert notes.sizes == sizes
