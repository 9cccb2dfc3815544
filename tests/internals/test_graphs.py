"""Graphs that call Python code or change variables, in functions, branches and loops."""

from typing import Any

import tensorflow as tf

from kfit.internals.graphs import OWN_PYTHON, calls_python, changed_captures


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


def test_variables_are_told_apart_that_functions_branches_and_loops_change() -> None:
    changed, read = [[tf.Variable(0.0) for _ in range(4)] for _ in range(2)]

    @tf.function
    def added(number: int) -> Any:
        return changed[number].assign_add(read[number])

    def traced(x: Any) -> Any:
        tf.cond(x > 0, lambda: added(0), lambda: read[2] + 1.0)
        tf.cond(x > 0, lambda: read[3] + 1.0, lambda: changed[1].assign(2.0))
        tf.while_loop(lambda y: y < read[1], lambda y: y + added(2), [x])
        return changed[3].assign(x)

    graph = tf.function(traced).get_concrete_function(tf.TensorSpec([])).graph
    found = changed_captures(graph, ("Assign",))
    handles = {id(variable.handle) for variable in changed}
    assert {id(handle) for handle, _ in found} == handles
    assert {operation for _, operation in found} == {"AssignVariableOp", "AssignAddVariableOp"}
