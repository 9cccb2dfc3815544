"""What of a traced step is one replica's own, read from its graph."""

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from kfit.graphs.origins import Origins

OWN: dict[str, Callable[[Any, Any], Any]] = {
    "examples": lambda x, _: x + 1.0,
    "random_numbers": lambda *_: tf.random.uniform([2]),
    "in_a_branch": lambda x, _: tf.cond(x[0] > 0, lambda: tf.ones([]), lambda: tf.zeros([])),
    "computed_by_python": lambda *_: tf.numpy_function(lambda: 1.0, [], tf.float64),
}
SHARED: dict[str, Callable[[Any, Any], Any]] = {
    "constant": lambda *_: tf.constant(2.0) * 3.0,
    "weights": lambda _, variable: variable * 2.0,
    "shape_that_is_known": lambda x, _: tf.constant(x.shape[0]),
    "branch_of_a_weight": lambda _, v: tf.cond(v > 0, lambda: v + 1.0, lambda: v - 1.0),
}


def traced(made: Callable[[Any, Any], Any], see: Callable[[Origins, Any, Any, Any], Any]) -> Any:
    """What is seen of a value that a step makes of its examples and a variable."""
    variable, seen = tf.Variable(1.0), []

    @tf.function(autograph=False)
    def step(x: tf.Tensor) -> tf.Tensor:
        origins = Origins()
        origins.begin()
        x = origins.own(tf.identity(x))
        value = made(x, variable)
        seen.append(see(origins, value, x, variable))
        return value

    step(tf.constant([1.0, 2.0]))
    return seen[0]


@pytest.mark.parametrize("name", [*OWN, *SHARED])
def test_what_may_differ_between_replicas(name: str) -> None:
    made = {**OWN, **SHARED}[name]
    assert traced(made, lambda origins, value, *_: origins.is_own(value, [])) == (name in OWN)


def test_what_was_agreed_on_is_nobodys_own_whatever_it_was_made_of() -> None:
    def see(origins: Origins, value: Any, *_: Any) -> Any:
        total = origins.agreed(tf.reduce_sum(value))
        return origins.is_own(total * 2.0, []), origins.known_kind(total)

    assert traced(OWN["examples"], see) == (False, frozenset())


def test_a_variable_of_the_replica_is_its_own() -> None:
    """In a function its handle is captured; the step itself holds it."""

    def see(origins: Origins, value: Any, _: Any, variable: Any) -> Any:
        handles = [variable.handle]
        return origins.is_own(value, handles), origins.reads(value, handles)

    assert traced(SHARED["weights"], see) == (True, True)
    assert traced(SHARED["constant"], see) == (False, False)


def test_what_was_noted_of_a_tensor() -> None:
    def see(origins: Origins, value: Any, x: Any, _: Any) -> Any:
        mean = origins.estimate(tf.reduce_mean(x))
        return [origins.known_kind(tensor) for tensor in (x, mean, value)]

    assert traced(OWN["examples"], see) == [frozenset({"rows"}), frozenset({"mean"}), None]


def test_outside_of_a_graph_nothing_is_anybodys_own() -> None:
    origins = Origins()
    assert not origins.is_own(tf.constant(1.0), [])
    assert not origins.is_own(1.0, [])
