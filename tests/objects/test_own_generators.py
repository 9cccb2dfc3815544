"""Generators and variables that an object holds draw on from the state that was read."""

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.objects.own_generators import give, holds_state, is_generator, nbytes_of, read
from kfit.objects.values import from_bytes, to_bytes

GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "python": (lambda: random.Random(1), lambda made: made.random()),
    "numpy": (lambda: np.random.default_rng(1), lambda made: made.random()),
    "philox": (lambda: np.random.Generator(np.random.Philox(1)), lambda made: made.random()),
    "older_numpy": (lambda: np.random.RandomState(1), lambda made: made.normal()),
    "tensorflow": (lambda: tf.random.Generator.from_seed(1), lambda made: float(made.normal([]))),
    "keras": (lambda: keras.random.SeedGenerator(1), lambda made: float(made.next()[1])),
}


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_draws_on(kind: str) -> None:
    make, draw = GENERATORS[kind]
    made = make()
    draw(made)
    kept = from_bytes(to_bytes(read(made)))
    expected = [draw(made) for _ in range(3)]
    other = make()
    give(other, kept)
    assert [draw(other) for _ in range(3)] == expected
    assert is_generator(made)
    assert holds_state(made)


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable])
def test_a_variable_comes_back(make: Any) -> None:
    variable = make(np.arange(3, dtype="float32"))
    kept = read(variable)
    variable.assign(np.zeros(3))
    give(variable, kept)
    np.testing.assert_array_equal(variable.numpy(), [0, 1, 2])
    assert holds_state(variable)
    assert not is_generator(variable)
    assert nbytes_of(variable) >= 12


def test_what_has_no_state_to_read() -> None:
    assert not holds_state(random.SystemRandom())
    assert not holds_state(np.zeros(2))
