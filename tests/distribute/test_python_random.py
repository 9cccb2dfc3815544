"""What is drawn within disturbs nothing, and follows from the seed."""

import random

from kfit.distribute.python_random import undisturbed


def drawn_within() -> float:
    with undisturbed():
        return random.random()


def test_it_goes_on_as_if_nothing_had_been_drawn() -> None:
    random.seed(1)
    expected = random.random()
    random.seed(1)
    first = drawn_within()
    assert random.random() == expected
    random.seed(1)
    assert drawn_within() == first
    assert first != expected
    random.seed(2)
    assert drawn_within() != first
