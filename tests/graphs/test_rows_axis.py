"""The axis of the examples is found wherever an operation has put it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from kfit.graphs.rows_axis import rows_axis
from tests.exactness.cases.comparison import assert_equal_logs
from tests.exactness.cases.metric_functions import evaluated_on
from tests.sweeps import halves, sweep

pytestmark = pytest.mark.usefixtures("ungathered")

CASES: dict[str, tuple[Callable[[Any], Any], int | None]] = {
    "as_it_was": (lambda x: x + 1.0, 0),
    "transposed": (tf.transpose, 2),
    "transposed_in_part": (lambda x: tf.transpose(x, [1, 0, 2]) * 2.0, 1),
    "transposed_back": (lambda x: tf.transpose(tf.exp(tf.transpose(x))), 0),
    "softmax_of_the_batch": (lambda x: tf.nn.softmax(x, axis=0).op.inputs[0], 2),
    "behind_a_new_axis": (lambda x: x[None], 1),
    "expanded": (lambda x: tf.expand_dims(x, 0), 1),
    "before_a_new_axis": (lambda x: x[:, None], 0),
    "stacked": (lambda x: tf.stack([x, x]), 1),
    "unstacked": (lambda x: tf.stack([x, x])[0], 0),
    "without_an_axis": (lambda x: tf.transpose(x)[..., 0, :], 1),
    "summed": (lambda x: tf.reduce_sum(x, 0), None),
    "broadcast": (lambda x: tf.transpose(x)[0] + tf.zeros((4, 3, 1)), 2),
}


@pytest.mark.parametrize("name", CASES)
def test_the_axis_of_the_examples(name: str) -> None:
    made, axis = CASES[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, 3, 5))])
    def step(x: Any) -> None:
        found.append(rows_axis(made(x)))

    step.get_concrete_function()
    assert found == [axis]


def time_major(x: Any) -> Any:
    return tf.transpose(x, [1, 0, 2])


OF_SEQUENCES: dict[str, tuple[Callable[[Any], Any], int | None]] = {
    "as_they_were": (tf.tanh, 0),
    "time_major": (time_major, 1),
    "step_of_time": (lambda x: time_major(x)[0] * 2.0, 0),
    "example": (lambda x: x[0] * 2.0, None),
    "summed": (lambda x: tf.exp(tf.reduce_sum(x, 0)), None),
    "summed_over_time": (lambda x: tf.reduce_sum(time_major(x), 0), 0),
    "spread_over_time": (lambda x: tf.reduce_sum(x, 1)[None] + time_major(x), 1),
    "products_within": (lambda x: tf.matmul(x, x, transpose_b=True), 0),
    "products_of_examples": (lambda x: tf.einsum("btc,bsc->ts", x, x), None),
    "reshaped": (lambda x: tf.reshape(time_major(x), [-1, tf.shape(x)[0], 5, 1]), 1),
    "flat": (lambda x: tf.reshape(x, [-1, 5]), 0),
    "places_of_time": (lambda x: tf.range(tf.shape(x)[1]), None),
    "places": (lambda x: tf.range(tf.shape(x)[0]), 0),
    "ones_of_time": (lambda x: tf.ones([tf.shape(x)[1], 3]), None),
    "ones": (lambda x: tf.ones([3, tf.shape(x)[0]]), 1),
    "broadcast": (lambda x: tf.broadcast_to(x[:1], tf.shape(x)), 0),
    "scanned": (lambda x: tf.scan(lambda one, other: one + other, time_major(x)), 1),
    "mapped": (lambda x: tf.map_fn(tf.reduce_sum, x), 0),
    "padded": (lambda x: tf.pad(time_major(x), [[1, 0], [0, 0], [0, 0]]), 1),
}


@pytest.mark.parametrize("name", sweep(OF_SEQUENCES))
def test_the_axis_of_the_examples_beside_that_of_time(name: str) -> None:
    made, axis = OF_SEQUENCES[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec((None, None, 5))])
    def step(x: Any) -> None:
        found.append(rows_axis(made(x)))

    step.get_concrete_function()
    assert found == [axis]


X = np.random.default_rng(0).random(size=(17, 7, 4)).astype("float32")
Y = np.random.default_rng(1).random(size=(17, 7, 4)).astype("float32")
Function = Callable[[Any, Any], Any]


def squares(y: Any, p: Any) -> Any:
    return (y - p) ** 2


def size(x: Any, axis: int) -> Any:
    return tf.cast(tf.shape(x)[axis], "float32")


def steps(p: Any) -> Any:
    return (time_major(p)[1:] - time_major(p)[:-1]) ** 2


EXACT: dict[str, Function] = {
    "sum": lambda y, p: tf.reduce_sum(squares(y, p), 0),
    "mean": lambda y, p: tf.reduce_mean(squares(y, p), 0),
    "mean_of_sum": lambda y, p: tf.reduce_mean(tf.reduce_sum(squares(y, p), 0)),
    "sum_of_mean": lambda y, p: tf.reduce_sum(tf.reduce_mean(squares(y, p), 0)),
    "time_major": lambda y, p: time_major(squares(y, p)),
    "time_major_sum": lambda y, p: tf.reduce_sum(time_major(squares(y, p)), 1),
    "by_number": lambda y, p: tf.reduce_sum(squares(y, p)) / size(time_major(p), 1),
    "by_time": lambda y, p: tf.reduce_sum(squares(y, p)) / size(time_major(p), 0),
    "steps": lambda y, p: tf.reduce_mean(steps(p)),
    "sum_of_steps": lambda y, p: tf.reduce_sum(steps(p)),
    "added_up_over_time": lambda y, p: tf.reduce_mean(tf.cumsum(time_major(p), 0) ** 2),
    "centered_in_time": lambda y, p: tf.reduce_mean(
        (time_major(p) - tf.reduce_mean(time_major(p), 0)) ** 2
    ),
    "last": lambda y, p: tf.reduce_mean(time_major(squares(y, p))[-1]),
    "padded": lambda y, p: tf.reduce_mean(tf.pad(time_major(p), [[1, 0], [0, 0], [0, 0]])),
    "scanned": lambda y, p: tf.reduce_mean(
        tf.scan(lambda one, other: 0.5 * one + other, time_major(squares(y, p)))
    ),
    "weights_of_time": lambda y, p: tf.reduce_sum(tf.reduce_mean(p, [0, 2]) * tf.range(size(p, 1))),
    "of_last_step": lambda y, p: tf.reduce_mean(time_major(p)[2, :, 1] ** 2),
}
WARNED: dict[str, Function] = {
    "squares_of_means": lambda y, p: tf.reduce_mean(tf.reduce_mean(p, 0) ** 2),
    "largest": lambda y, p: tf.reduce_max(p, 0),
    "padded_examples": lambda y, p: tf.reduce_mean(tf.pad(time_major(p), [[0, 0], [1, 0], [0, 0]])),
    "steps_of_examples": lambda y, p: tf.reduce_mean(time_major(p)[:, 1:] - time_major(p)[:, :-1]),
}
COMBINE: dict[str, Function] = {
    "added_up": lambda y, p: tf.reduce_mean(tf.cumsum(time_major(p), 1) ** 2),
    "products": lambda y, p: tf.reduce_mean(tf.einsum("tbc,tac->tab", *[time_major(p)] * 2)),
    "centered": lambda y, p: tf.reduce_mean(
        (time_major(p) - tf.reduce_mean(time_major(p), 1, keepdims=True)) ** 2
    ),
}


def evaluated(functions: dict[str, Function], strategy: Any) -> tuple[dict[str, Any], str]:
    sequences = tf.data.Dataset.from_tensor_slices((X, Y))
    sequences = sequences.padded_batch(10, padded_shapes=([None, 4], [None, 4]))
    return evaluated_on(functions, strategy, data=(sequences,), shape=(None, 4))


@pytest.mark.long
@pytest.mark.parametrize("functions", halves(EXACT))
def test_numbers_of_sequences_of_any_length(tiny: Any, functions: dict[str, Function]) -> None:
    got, said = evaluated(functions, tiny.strategy(3))
    assert said == ""
    assert_equal_logs(got, evaluated(functions, None)[0])


@pytest.mark.long
def test_other_numbers_of_sequences_are_warned_of(tiny: Any) -> None:
    said = evaluated(WARNED | COMBINE, tiny.strategy(2))[1]
    assert {name for name in WARNED if f"'{name}' is given is neither" in said} == set(WARNED)
    assert {name for name in COMBINE if f"'{name}' is given combines" in said} == set(COMBINE)
