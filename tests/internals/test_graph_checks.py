"""A check in the graph that has failed is told in its own words."""

from typing import Any

import pytest
import tensorflow as tf

from kfit.internals.graph_checks import check_in_graph, failed_check


def failure(assertion: Any) -> tf.errors.InvalidArgumentError:
    @tf.function(input_signature=[tf.TensorSpec((None,), tf.int32)])
    def step(x: Any) -> Any:
        with tf.control_dependencies([assertion(x)]):
            return tf.identity(x)

    step(tf.constant([1, 1]))
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        step(tf.constant([1, 2]))
    return raised.value


def test_a_failed_check_of_kfit() -> None:
    def check(x: Any) -> Any:
        message = "`x` must be 'equal' (all of it)."
        return check_in_graph(tf.reduce_all(x == x[0]), message, [x, tf.size(x)])

    assert failed_check(failure(check)) == "`x` must be 'equal' (all of it). Received: 1 2, 2"


def test_a_failed_assertion_of_a_program() -> None:
    error = failure(lambda x: tf.debugging.assert_equal(x, x[0], "my own"))
    assert failed_check(error) == ""
