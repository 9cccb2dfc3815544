"""Graphs that call Python code, in functions and loops."""

from typing import Any

import tensorflow as tf

from kfit.internals.graphs import OWN_PYTHON, calls_python


def test_python_code_is_found_in_functions_and_loops_but_not_that_of_kfit() -> None:
    def traced(**options: Any) -> Any:
        def call(x: Any) -> Any:
            return tf.reshape(tf.numpy_function(abs, [x], tf.float32, **options), [])

        inner = tf.function(call)

        def looped(x: Any) -> Any:
            return tf.while_loop(lambda y: y < 0.0, inner, [x])

        outer = tf.function(looped, autograph=False)
        return outer.get_concrete_function(tf.TensorSpec([])).graph

    assert calls_python(traced())
    assert not calls_python(traced(name=OWN_PYTHON))
