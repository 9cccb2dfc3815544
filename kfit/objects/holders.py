"""Reads, sets and deletes what a `__dict__`, a list, a tuple or a dict holds."""

from __future__ import annotations

import array as python_arrays
from collections import deque
from typing import Any

import numpy as np

from kfit.objects.values import DICTS, type_of


def items_of(holder: Any) -> list[tuple[Any, Any]]:
    """Returns the keys or indices in a holder with their values; only keys that paths can have."""
    if isinstance(holder, dict):
        return [(k, v) for k, v in list(holder.items()) if type(k) in (str, int)]
    return list(enumerate(holder))


def has(holder: Any, key: Any) -> bool:
    """Returns whether a holder has a value at a key or index."""
    return key in holder if isinstance(holder, dict) else key < len(holder)


def put(holder: Any, key: Any, value: Any) -> bool:
    """Sets an item of a dict, list or tuple to a plain value, in place if possible.

    Args:
        holder: The dict, list or tuple. A tuple's item can only be changed in place.
        key: The key or index of the item.
        value: The new value.

    Returns:
        Whether the item could be set.
    """
    inside: Any = dict(items_of(holder)).get(key)
    if _fits(inside, value):
        inside[...] = value
    elif type_of(inside) is type(value) and type(value) in (list, bytearray, python_arrays.array):
        inside[:] = value
    elif type_of(inside) is type(value) and type(value) in (set, *DICTS):
        inside.clear()
        inside.update(value)
    else:
        return bind(holder, key, value)
    return True


def bind(holder: Any, key: Any, value: Any) -> bool:
    """Lets an item of a dict, list or deque be an object; a list may become longer by one.

    Returns:
        Whether the item could be set. That of a tuple cannot.
    """
    if isinstance(holder, list) and key == len(holder):
        holder.append(value)
    elif isinstance(holder, dict) or (isinstance(holder, list | deque) and key < len(holder)):
        holder[key] = value
    else:
        return False
    return True


def unbind(holder: Any, key: Any) -> bool:
    """Deletes an item of a dict or list, if there is one.

    Returns:
        Whether there is none any more, or another one in a list.
    """
    if not has(holder, key):
        return True
    if not isinstance(holder, dict | list):
        return False
    del holder[key]
    return True


def _fits(inside: Any, value: Any) -> bool:
    if not isinstance(inside, np.ndarray) or not isinstance(value, np.ndarray):
        return False
    same = inside.shape == value.shape and inside.dtype == value.dtype
    return same and bool(inside.flags.writeable)
