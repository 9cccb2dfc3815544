"""What is drawn ahead of training: the state that is saved is that after the last batch taken."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.inputs.reader import Reader, print_of
from kfit.objects import Generators


@pytest.fixture(autouse=True)
def _generators() -> Iterator[None]:
    before = Generators.now()
    random.seed(1)
    yield
    before.give()


class Source:
    """Counts its batches, and draws for each."""

    def __init__(self, draws: bool = True) -> None:
        self.drawn, self._draws = 0, draws

    def __iter__(self) -> Iterator[Any]:
        while self.drawn < 5:
            self.drawn += 1
            yield np.full((2,), random.random() if self._draws else self.drawn)


def test_the_mark_is_that_of_the_last_batch_that_was_taken() -> None:
    source = Source()
    reader = Reader(iter(source), lambda: source.drawn, lambda: 1)
    first = next(reader)
    after_one = Generators.now()
    next(reader)
    next(reader)
    with reader.held() as mark:
        assert (mark.own, mark.print) == (0, 0)
    reader.took(1)
    with reader.held() as mark:
        assert (mark.own, mark.generators) == (1, after_one)
        assert mark.print == print_of(first, rows=1)
    reader.took(2)
    with reader.held() as mark:
        assert mark is None  # the source and the generators are as they were then
    assert reader.draws


def test_no_batch_is_drawn_while_it_is_paused() -> None:
    source = Source()
    reader = Reader(iter(source), lambda: source.drawn, lambda: 1)
    thread = threading.Thread(target=lambda: next(reader))
    next(reader)  # one is drawn ahead already
    with reader.paused():
        thread.start()
        thread.join(0.1)
        assert source.drawn == 1
    thread.join()
    assert source.drawn == 2


def test_a_source_that_draws_nothing_is_known() -> None:
    source = Source(draws=False)
    reader = Reader(iter(source), lambda: source.drawn, lambda: 1)
    assert len(list(reader)) == 5
    assert not reader.draws


def test_what_draws_from_generators_of_tensorflow_and_keras_is_known() -> None:
    def drawn(draw: Any) -> tuple[bool, bool, Any]:
        before = Generators.now().eager
        reader = Reader(map(draw, range(5)), lambda: 0, lambda: 1)
        next(reader)
        mark = Generators.now()
        next(reader)
        reader.took(1)
        with reader.held() as taken:
            assert taken is not None
            found = reader.drawn_until(taken)
        kept = None if found is None else (found.eager.keras, found.eager.tensorflow)
        assert kept in (None, (None, None), (mark.eager.keras, mark.eager.tensorflow))
        assert found is None or found.eager.seeds == mark.eager.seeds
        before.give()
        return reader.draws, reader.draws_variables, kept is not None and kept != (None, None)

    keras.utils.set_random_seed(1)
    keras.random.normal(())
    generator = tf.random.Generator.from_seed(1)
    tf.random.set_global_generator(generator)
    assert drawn(lambda _: 1) == (False, False, False)
    assert drawn(lambda _: float(tf.random.normal([]))) == (True, False, False)
    assert drawn(lambda _: float(generator.normal([]))) == (False, True, True)
    # In its threads Keras seeds a new generator from Python's, so that is saved as well.
    assert drawn(lambda _: float(keras.random.normal(()))) == (True, True, True)
    tf.random.set_global_generator(None)


def test_what_a_batch_that_fails_has_drawn_is_not_in_the_mark() -> None:
    states = []

    def batches() -> Iterator[Any]:
        for number in range(3):
            random.random()
            if number == 1:
                raise OSError("the disk")
            yield np.zeros(2)

    reader = Reader(batches(), lambda: len(states), lambda: 1)
    next(reader)
    reader.took(1)
    taken = Generators.now()
    states.append("what the source has become")
    with pytest.raises(OSError, match="disk"):
        next(reader)
    with reader.held() as mark:
        assert mark is not None
        assert mark.own == 0
        assert mark.generators == taken != Generators.now()
        assert reader.drawn_until(mark) is not None


def test_without_marks_batches_are_handed_on() -> None:
    reader = Reader(iter(Source()), None, lambda: 1)
    next(reader)
    reader.took(1)
    assert reader.mark is None
    reader.stop()
    assert list(reader) == []


def test_batches_are_told_apart_by_their_ends_and_length() -> None:
    rows = np.arange(10.0)
    assert print_of((rows, None)) == print_of((rows.copy(), None))
    other = rows.copy()
    other[5] = 0
    assert print_of(rows) != print_of(other)
    assert print_of(rows, rows=1) == print_of(other, rows=1)
    assert print_of(rows, rows=1) != print_of(rows[[0, 9]], rows=1)
    assert print_of({"a": np.array(["x", "y"])}) != print_of({"a": np.array(["x", "z"])})
