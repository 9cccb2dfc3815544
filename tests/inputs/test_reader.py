"""What is drawn ahead of training: the state that is saved is that after the last batch taken."""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

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


def test_a_source_that_draws_nothing_is_known() -> None:
    source = Source(draws=False)
    reader = Reader(iter(source), lambda: source.drawn, lambda: 1)
    assert len(list(reader)) == 5
    assert not reader.draws


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
