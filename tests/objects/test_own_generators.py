"""Generators and variables that an object holds draw on from the state that was read."""

import random
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.objects.own_generators import (
    check_state,
    give,
    holds_state,
    is_generator,
    nbytes_of,
    read,
)
from kfit.objects.values import decode, encode, from_bytes, to_bytes


def spawned(made: np.random.Generator) -> Any:
    """A number of a generator that is drawn, and spawned from, in turn."""
    return made.random(), made.spawn(1)[0].random()


GENERATORS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "python": (lambda: random.Random(1), lambda made: made.random()),
    "numpy": (lambda: np.random.default_rng(1), lambda made: made.random()),
    "philox": (lambda: np.random.Generator(np.random.Philox(1)), lambda made: made.random()),
    "spawning": (lambda: np.random.default_rng(1), spawned),
    "spawning_bits": (lambda: np.random.PCG64(1), lambda made: made.spawn(1)[0].random_raw()),
    "seed_sequence": (
        lambda: np.random.SeedSequence([1, 2]),
        lambda made: made.spawn(1)[0].generate_state(2).tolist(),
    ),
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
    give(made, kept)
    assert [draw(made) for _ in range(3)] == expected
    assert is_generator(made)
    assert holds_state(made)


def test_a_state_without_a_seed_is_that_of_an_earlier_version() -> None:
    made, other = np.random.default_rng(1), np.random.default_rng(1)
    made.random()
    made.spawn(2)
    give(other, encode(made.bit_generator.state))
    assert other.random() == made.random()
    sequence: Any = other.bit_generator.seed_seq
    assert sequence.n_children_spawned == 0


@pytest.mark.parametrize("name", ["entropy", "spawn_key", "n_children_spawned"])
@pytest.mark.parametrize("value", [None, -1, 1 << 80, "text", [0.5]])
def test_what_cannot_be_a_seed_is_refused_or_a_seed(name: str, value: Any) -> None:
    made = np.random.default_rng(1)
    state = decode(read(made))
    state["seed_seq"][name] = value
    if (name, value) == ("entropy", 1 << 80):
        check_state(state)
        return
    with pytest.raises((ValueError, TypeError)):
        check_state(state)
    with pytest.raises((ValueError, TypeError)):
        give(made, encode(state))


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
