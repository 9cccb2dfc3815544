"""TensorFlow's and Keras' global generators: taken, told to other tasks, and given back."""

import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.internals.randomness import existing_seed_generator, set_seed_generator
from kfit.objects.eager_generators import NONE, ROW, EagerGenerators, check_eager_rows


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    generator, seeds = existing_seed_generator(), EagerGenerators.now()
    tf.random.set_seed(1)
    tf.random.set_global_generator(tf.random.Generator.from_seed(1))
    set_seed_generator(keras.random.SeedGenerator(1))
    yield
    tf.random.set_global_generator(None)
    set_seed_generator(generator)
    seeds.give()


def drawn() -> list[float]:
    shuffled = tf.random.shuffle([1, 2, 3, 4]).numpy().tolist()
    of_generator = tf.random.get_global_generator().normal([]).numpy()
    return [tf.random.normal([]).numpy(), *shuffled, of_generator, float(keras.random.normal(()))]


@pytest.mark.parametrize("is_told", [False, True])
def test_they_draw_the_same_again(is_told: bool) -> None:
    drawn()
    states = EagerGenerators.now()
    expected = drawn()
    assert EagerGenerators.now() != states
    assert drawn() != expected
    told = EagerGenerators.of_row(states.row()) if is_told else states
    assert (told, told.tensorflow, told.keras) == (states, states.tensorflow, states.keras)
    told.give()
    assert drawn() == expected


def test_a_generator_that_is_not_there_yet_is_made() -> None:
    states = EagerGenerators.now()
    expected = tf.random.get_global_generator().normal([]).numpy()
    tf.random.set_global_generator(None)
    states.give()
    assert tf.random.get_global_generator().normal([]).numpy() == expected


def test_variables_are_no_part_of_a_comparison_and_read_where_they_can_be() -> None:
    states = EagerGenerators.now()
    tf.random.get_global_generator().normal([])
    keras.random.normal(())
    assert EagerGenerators.now() == states
    found: list[Any] = []
    tf.function(lambda: found.append(EagerGenerators.now()))()
    thread = threading.Thread(target=lambda: found.append(EagerGenerators.now()))
    thread.start()
    thread.join()
    assert [each.keras for each in found] == [None, None]
    assert [each.tensorflow is None for each in found] == [True, False]


def test_nothing_is_given_where_nothing_was() -> None:
    states = EagerGenerators.now()
    EagerGenerators.of_row(np.zeros(ROW)).give()
    assert EagerGenerators.of_row(NONE.row()) == NONE
    assert EagerGenerators.now().row().tolist() == states.row().tolist()


@pytest.mark.parametrize(
    ("place", "value"), [(0, 2), (1, -1), (2, 0.5), (625, 625), (626, 3), (629, 9), (630, 4)]
)
def test_rows_that_are_none_are_refused(place: int, value: float) -> None:
    row = EagerGenerators.now().row()
    check_eager_rows(row[None], "eager")
    row[place] = value
    with pytest.raises(ValueError, match="eager cannot be the states"):
        check_eager_rows(row[None], "eager")
    with pytest.raises(ValueError, match="must be an array"):
        check_eager_rows(row.tolist(), "eager")
    with pytest.raises(ValueError, match="shape"):
        check_eager_rows(row[None, 1:], "eager")
