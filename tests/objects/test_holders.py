"""Items are set in place if possible, and deleted where there are some."""

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kfit.objects.holders import bind, has, items_of, put, unbind


@pytest.mark.parametrize(
    ("inside", "value"),
    [
        ([1], [2, 3]),
        ({1}, {2}),
        ({"a": 1}, {"b": 2}),
        (bytearray(1), bytearray(2)),
        (np.zeros(2), np.ones(2)),
        (np.zeros(1, "M8[D]"), np.ones(1, "M8[D]")),
    ],
)
def test_a_value_is_set_in_place(inside: Any, value: Any) -> None:
    holders: tuple[tuple[Any, Any], ...] = (({"a": inside}, "a"), ([inside], 0), ((inside,), 0))
    for holder, key in holders:
        assert put(holder, key, value)
        assert holder[key] is inside
        assert str(inside) == str(value)


@pytest.mark.parametrize("value", [1, np.zeros(3), deque([1]), {"a": 1}])
def test_a_value_of_another_form_takes_the_place(value: Any) -> None:
    holder: Any = [[1]]
    assert put(holder, 0, value)
    assert holder == [value]
    assert not put(([1],), 0, value)


def test_what_is_bound_and_deleted() -> None:
    names, items = vars(SimpleNamespace(a=1)), [1, 2]
    assert items_of({"a": 1, 2: 3, (1, 2): 4}) == [("a", 1), (2, 3)]
    assert items_of("ab") == [(0, "a"), (1, "b")]
    assert bind(names, "b", 2)
    assert bind(items, 2, 3)
    assert not bind(items, 4, 5)
    assert not bind((1,), 0, 2)
    assert (names, items) == ({"a": 1, "b": 2}, [1, 2, 3])
    assert has(names, "a")
    assert has(items, 2)
    for _ in range(2):
        assert unbind(names, "a")
        assert unbind(items, 2)
    assert (names, items) == ({"b": 2}, [1, 2])
    assert not unbind((1,), 0)
