"""Containers that hold nothing but values, and those that may hold more."""

from collections import OrderedDict
from typing import Any

import numpy as np

from kfit.distribute.contents import DEEPEST, holds_only_values


def nested(depth: int) -> list[Any]:
    inner: list[Any] = [1]
    for _ in range(depth):
        inner = [inner]
    return inner


def test_values_of_python_and_numpy() -> None:
    held = [1, "a", None, {"a": (2.5, [np.zeros(2)])}, OrderedDict(b=b"")]
    assert holds_only_values(held)
    held.append(held)
    assert holds_only_values(held)
    assert holds_only_values([])


def test_what_may_hold_more() -> None:
    assert not holds_only_values([[[object()]]])
    assert not holds_only_values({"a": {1, 2}})
    assert not holds_only_values([np.float32(1)])
    assert holds_only_values(nested(DEEPEST - 1))
    assert not holds_only_values(nested(DEEPEST + 1))
