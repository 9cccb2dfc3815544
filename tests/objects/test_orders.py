"""What may be an order that a program has drawn."""

from typing import Any

import numpy as np
import pytest

from kfit.objects.orders import is_order, may_be_written


@pytest.mark.parametrize("value", [[0, 1], [2, 0, 1], np.array([1, 0]), np.array([0, 1], "u1")])
def test_a_permutation_is_an_order(value: Any) -> None:
    assert is_order(value)
    assert may_be_written(value)


@pytest.mark.parametrize(
    "value",
    [(0, 1), [0], [], [1, 2], [0, 0], [0, 1.0], [False, True], np.zeros((2, 2), int), "01", {0, 1}],
)
def test_what_is_no_order(value: Any) -> None:
    assert not is_order(value)
    assert not may_be_written(value)


def test_a_long_one_was_drawn() -> None:
    assert not may_be_written(list(range(100)))
