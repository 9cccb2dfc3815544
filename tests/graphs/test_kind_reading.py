"""How a value is computed from the examples is read from the operations of the graph."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.kind_reading import Reading
from tests.exactness.cases.traced import asked_in_step

CASES: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "mean": (lambda x: tf.reduce_mean(x), {"mean"}),
    "sum_by_number": (lambda x: tf.reduce_sum(x) / tf.cast(tf.shape(x)[0], x.dtype), {"mean"}),
    "root": (lambda x: tf.sqrt(tf.reduce_mean(x)), {"other"}),
    "constant": (lambda x: tf.constant(1.0), set()),
    "first_case": (
        lambda x: tf.switch_case(
            tf.constant(0), [lambda: tf.reduce_sum(x), lambda: tf.reduce_mean(x)]
        ),
        {"sum"},
    ),
    "second_case": (
        lambda x: tf.switch_case(
            tf.constant(1), [lambda: tf.reduce_sum(x), lambda: tf.reduce_mean(x)]
        ),
        {"mean"},
    ),
    "no_case": (
        lambda x: tf.switch_case(
            tf.constant(7), [lambda: tf.reduce_sum(x), lambda: tf.reduce_mean(x)]
        ),
        {"mean"},
    ),
    "histogram": (lambda x: tf.math.bincount(tf.cast(x[:, 0], "int32"), maxlength=3), {"sum"}),
    "histogram_of_each": (
        lambda x: tf.math.bincount(tf.cast(x, "int32"), axis=-1, maxlength=3),
        {"rows"},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_kinds_of_a_value(name: str) -> None:
    function, expected = CASES[name]
    assert asked_in_step(lambda x, origins: Reading(origins).of(function(x)), 4) == expected
