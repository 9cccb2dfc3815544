"""Recognizes orders: permutations that a program may have drawn when it made an object.

An order in an attribute is saved even if training has not changed it, since a program may draw
another one when it is started again. But a short one may also be a setting that somebody wrote.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_WRITTEN = 64
"""The most items of an order that somebody may have written, and not drawn."""


def is_order(value: Any) -> bool:
    """Returns whether a list or array is a permutation of the integers from 0 to n - 1."""
    if isinstance(value, list) and not (value and set(map(type, value)) == {int}):
        return False
    if not isinstance(value, (np.ndarray, list)):
        return False
    array = np.asarray(value)
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) < 2:
        return False
    inside = array.min() == 0 and array.max() == len(array) - 1
    return bool(inside and np.bincount(array).max() == 1)


def may_be_written(value: Any) -> bool:
    """Returns whether a value is an order that is so short that it may be a setting."""
    return is_order(value) and len(value) <= _WRITTEN
