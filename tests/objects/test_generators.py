"""The states of the global generators: taken, told to other tasks, and given back."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from kfit.objects.generators import ROW, Generators


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = Generators.now()
    yield
    before.give()


def drawn() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.normal()]


WAYS: dict[str, Callable[[Generators], Generators]] = {
    "themselves": lambda states: states,
    "a_row": lambda states: Generators.of_row(states.row(), states.torch, states.eager.row()),
    "a_state_dict": lambda states: Generators.of_state_dict(states.state_dict()),
}


@pytest.mark.parametrize("way", WAYS)
def test_they_draw_the_same_again(way: str) -> None:
    random.seed(1)
    np.random.seed(1)
    drawn()  # both have the second normal number of a pair to spare now
    states = Generators.now()
    expected = drawn()
    told = WAYS[way](states)
    assert told == states
    told.give()
    assert drawn() == expected


@pytest.mark.parametrize("state", [None, b"\x01=\xff", np.array([1, 61, 255], "uint8")])
def test_the_state_of_torch_is_taken_as_bytes_and_as_an_array(state: Any) -> None:
    found = Generators.of_row(Generators.now().row(), state).torch
    assert found == (None if state is None else b"\x01=\xff")


def test_a_row_has_as_many_numbers_as_it_says() -> None:
    assert Generators.now().row().shape == (ROW,)
