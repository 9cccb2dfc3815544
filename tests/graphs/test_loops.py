"""Loops and branches: over the examples, over columns, and of statistics."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.exactness.cases.comparison import assert_equal_logs
from tests.exactness.cases.metric_functions import evaluated_on

pytestmark = pytest.mark.usefixtures("ungathered")

Function = Callable[[Any, Any], Any]
X = np.random.default_rng(0).random(size=(17, 4)).astype("float32")
Y = np.random.default_rng(1).random(size=(17, 4)).astype("float32")


def squares(y: Any, p: Any) -> Any:
    return (y - p) ** 2


def running(carry: Any, row: Any) -> tuple[Any, Any]:
    return 0.5 * carry + row, carry + row


def halved(carry: Any, row: Any) -> Any:
    return 0.5 * carry + row


def centered(values: Any) -> Any:
    return values - tf.reduce_mean(values, 0)


def loop(times: Any, change: Callable[[Any, Any], Any], first: Any) -> Any:
    """Returns what is left after `change(i, value)` was called for each i."""
    return tf.while_loop(
        lambda i, value: i < times, lambda i, value: (i + 1, change(i, value)), (0, first)
    )[1]


def written(y: Any, read: Callable[[Any], Any]) -> Any:
    """Returns what `read(i)` returns for each place i in the batch."""
    number = tf.shape(y)[0]
    array = tf.TensorArray(tf.float32, size=number)
    return loop(number, lambda i, array: array.write(i, read(i)), array).stack()


def carried(y: Any, p: Any) -> Any:
    number, rows = tf.shape(y)[0], squares(y, p)
    array = tf.TensorArray(tf.float32, size=number)

    def body(i: Any, total: Any, array: Any) -> Any:
        total = 0.5 * total + tf.reduce_sum(rows[i])
        return i + 1, total, array.write(i, total)

    return tf.while_loop(lambda i, *rest: i < number, body, (0, 0.0, array))[2].stack()


def unstacked(y: Any, p: Any) -> Any:
    number = tf.shape(y)[0]
    rows = tf.TensorArray(tf.float32, size=number).unstack(squares(y, p))
    return loop(number, lambda i, total: 0.5 * total + tf.reduce_sum(rows.read(i)), 0.0)


EXACT: dict[str, Function] = {
    "each_by_map": lambda y, p: tf.map_fn(
        lambda rows: tf.reduce_sum(squares(*rows)), (y, p), fn_output_signature=tf.float32
    ),
    "mean_of_each_by_map": lambda y, p: ops.mean(ops.map(ops.sum, squares(y, p))),
    "each_written": lambda y, p: written(y, lambda i: tf.reduce_sum(squares(y[i], p[i]))),
    "scan_over_columns": lambda y, p: tf.reduce_mean(tf.scan(halved, tf.transpose(squares(y, p)))),
    "scan_over_columns_and_back": lambda y, p: tf.transpose(
        tf.scan(halved, tf.transpose(squares(y, p)))
    ),
    "fold_over_columns": lambda y, p: tf.foldl(halved, tf.transpose(squares(y, p))),
    "again_and_again": lambda y, p: loop(3, lambda i, value: tf.tanh(value), squares(y, p)),
    "means_of_columns": lambda y, p: loop(4, lambda i, value: value + tf.reduce_mean(p[:, i]), 0.0),
    "sums_of_columns": lambda y, p: loop(4, lambda i, value: value + tf.reduce_sum(p, 0)[i], 0.0),
    "branch_with_mean": lambda y, p: tf.cond(
        tf.constant(True), lambda: tf.reduce_mean(squares(y, p)), lambda: 0.0
    ),
    "branch_with_rows": lambda y, p: tf.cond(
        tf.constant(True), lambda: squares(y, p)[:, 0], lambda: p[:, 0]
    ),
}
COMBINE: dict[str, Function] = {
    "scan": lambda y, p: tf.scan(halved, squares(y, p)),
    "mean_of_scan": lambda y, p: tf.reduce_mean(tf.scan(halved, squares(y, p))),
    "scan_of_keras": lambda y, p: ops.scan(running, ops.zeros(4), squares(y, p))[1],
    "mean_of_scan_of_keras": lambda y, p: ops.mean(
        ops.scan(running, ops.zeros(4), squares(y, p))[1]
    ),
    "carried": carried,
    "unstacked": unstacked,
    "loop_of_keras": lambda y, p: ops.fori_loop(
        0, ops.shape(p)[0], lambda i, total: 0.5 * total + ops.sum(squares(y, p)[i]), 0.0
    ),
    "the_one_before": lambda y, p: written(y, lambda i: tf.reduce_sum(p[tf.maximum(i - 1, 0)])),
    "each_with_all": lambda y, p: tf.map_fn(lambda row: tf.reduce_sum(squares(row, p)), y),
    "shares_again_and_again": lambda y, p: tf.reduce_mean(
        loop(3, lambda i, value: value / tf.reduce_sum(value, 0), squares(y, p))
    ),
    "added_up_inside": lambda y, p: tf.reduce_mean(
        tf.scan(lambda carry, column: carry * tf.cumsum(column), tf.transpose(squares(y, p)))
    ),
    "centered_in_a_branch": lambda y, p: tf.cond(
        tf.constant(True), lambda: centered(p) ** 2, lambda: p
    ),
}
WARNED: dict[str, Function] = {
    "fold": lambda y, p: tf.reduce_mean(tf.foldl(halved, squares(y, p))),
    "root_in_a_branch": lambda y, p: tf.cond(
        tf.constant(True), lambda: tf.sqrt(tf.reduce_mean(squares(y, p))), lambda: 0.0
    ),
    "branch_by_value": lambda y, p: tf.cond(
        tf.reduce_max(p) > 0.5, lambda: tf.reduce_mean(p), lambda: 0.0
    ),
    "some_of_a_branch": lambda y, p: tf.cond(
        tf.constant(True), lambda: tf.reduce_mean(p[:2]), lambda: 0.0
    ),
    "sums_and_a_constant": lambda y, p: loop(
        4, lambda i, value: value + tf.reduce_sum(p, 0)[i], 5.0
    ),
    "sum_or_a_constant": lambda y, p: tf.cond(
        tf.equal(tf.shape(p)[1], 4), lambda: tf.reduce_sum(p), lambda: 3.0
    ),
    "product_of_means": lambda y, p: loop(4, lambda i, value: value * tf.reduce_mean(p[:, i]), 1.0),
}


DAILY = (
    *("each_by_map", "scan_over_columns", "branch_with_mean", "scan", "each_with_all"),
    *("fold", "branch_by_value"),
)


def parts(functions: dict[str, Function]) -> list[Any]:
    """The functions that are tried every day, and the others."""
    some, others = (
        {name: function for name, function in functions.items() if (name in DAILY) is daily}
        for daily in (True, False)
    )
    return [
        pytest.param(some, id="some"),
        pytest.param(others, id="others", marks=pytest.mark.long),
    ]


evaluated = partial(evaluated_on, data=(X, Y), batch_size=10)


@pytest.mark.parametrize("functions", parts(EXACT))
def test_loops_that_compute_with_each_example_by_itself(
    tiny: Any, functions: dict[str, Function]
) -> None:
    got, said = evaluated(functions, tiny.strategy(3))
    assert said == ""
    assert_equal_logs(got, evaluated(functions, None)[0])


@pytest.mark.parametrize("functions", parts(COMBINE))
def test_loops_that_combine_examples(tiny: Any, functions: dict[str, Function]) -> None:
    said = evaluated(functions, tiny.strategy(2))[1]
    assert {name for name in functions if f"'{name}' is given combines" in said} == set(functions)


@pytest.mark.parametrize("functions", parts(WARNED))
def test_loops_and_branches_that_are_no_mean(tiny: Any, functions: dict[str, Function]) -> None:
    said = evaluated(functions, tiny.strategy(2))[1]
    assert {name for name in functions if f"'{name}' is given is neither" in said} == set(functions)


@pytest.mark.long
@pytest.mark.parametrize(
    ("cell", "shape"),
    [
        (partial(layers.LSTM, 4, return_sequences=True), (17, 7, 4)),
        (partial(layers.GRU, 2), (17, 2)),
        (partial(layers.SimpleRNN, 2), (17, 2)),
    ],
    ids=["lstm", "gru", "simple_rnn"],
)
def test_a_recurrent_layer_goes_over_time(tiny: Any, cell: Any, shape: tuple[int, ...]) -> None:
    words = np.random.default_rng(3).integers(0, 5, (17, 7))
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None,))
    x = layers.Embedding(5, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, cell()(x))
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        kfit.Trainer(model, tiny.strategy(2)).fit(words, np.ones(shape), batch_size=10, verbose=0)


@pytest.mark.parametrize("combines", [False, True])
def test_a_loop_that_keeps_values_for_its_gradients(tiny: Any, combines: bool) -> None:
    """What the step returns is judged when the gradients have been taken."""

    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            with tf.GradientTape() as tape:
                pairs = (y, self(x))
                if combines:
                    values = tf.scan(lambda a, b: 0.5 * a + tf.reduce_mean(b), pairs[1], 0.0)
                else:
                    values = tf.map_fn(
                        lambda pair: tf.reduce_mean((pair[0] - pair[1]) ** 2),
                        pairs,
                        fn_output_signature="float32",
                    )
                loss = tf.reduce_mean(values)
            variables = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, variables), variables)
            return {"value": loss}

    model = Own([keras.Input((4,)), layers.Dense(4)])
    model.compile("sgd")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfit.fit(model, X, Y, strategy=tiny.strategy(2), batch_size=8, verbose=0)
    told = {str(each.message).partition(" combines the examples")[0] for each in caught}
    of_step = {
        "The loss that this step takes gradients of",
        "The value 'value' that the step returns",
    }
    assert told & of_step == (of_step if combines else set())
