"""Tells whether some objects of Python and of other packages have changed, which kfit cannot save.

These are objects in which a program keeps a number, a text or a table: context variables, variables
of threads, weak dicts, shared memory of `multiprocessing` and `ctypes`, DataFrames of pandas, and
tables and modules of TensorFlow. They are only read, in a way that changes nothing, and large ones
in parts.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Container, Iterable
from contextvars import ContextVar
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.objects.values import fingerprint, is_exact, size_of

_MOST_BYTES = 1 << 20
"""The most bytes of a value that are read."""
_MOST_ROWS = 1000
_MOST_COLUMNS = 100
_MOST_ITEMS = 1 << 14
"""The most rows and columns of a DataFrame, and items of a dict or table, that are read."""
_UNSET = object()
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
_VARIABLES = tf.Module.variables.fget
"""Finds the variables of a module, also if its class raises an error for one without any."""
_TABLES = (tf.lookup.experimental.MutableHashTable, tf.lookup.experimental.DenseHashTable)


def inner_mark(value: Any, foreign: Container[int]) -> Any:
    """Returns a mark of what is in an object, which differs once this has changed.

    Args:
        value: The object. If it is none of those that this module knows, the mark is None.
        foreign: Ids (as of `id`) of variables whose changes are ignored.
    """
    if isinstance(value, ContextVar):
        return _marks([value.get(_UNSET)])
    if type(value) is threading.local:
        # Each thread has one of its own for connections and the like, which are no state.
        plain = [item for item in vars(value).items() if is_exact(item)]
        return _marks(plain)
    if isinstance(value, _WEAK):
        return _marks(value.values()) if len(value) <= _MOST_ITEMS else len(value)
    if type(value) in _of_module("pandas", "DataFrame", "Series"):
        return _mark_of_frame(value)
    if isinstance(value, _TABLES):
        return _mark_of_table(value)
    if isinstance(value, tf.Module):
        return _marks(
            variable.numpy() if _is_small(variable) else variable
            for variable in _VARIABLES(value)
            if id(variable) not in foreign
        )
    shared: tuple[Any, ...] = _of_module("multiprocessing.sharedctypes", "SynchronizedBase")
    memory = value.get_obj() if isinstance(value, shared) else value
    return None if isinstance(memory, np.ndarray) else _mark_of_memory(memory)


def _of_module(name: str, *classes: str) -> tuple[type, ...]:
    """Returns classes of a module by their names; none if the program has not imported it."""
    module = sys.modules.get(name)
    return tuple(getattr(module, each) for each in classes if hasattr(module, each))


def _marks(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(
        fingerprint(value)
        if is_exact(value) and size_of(value) <= _MOST_BYTES
        else (type(value), id(value))
        for value in list(values)
    )


def _mark_of_frame(frame: Any) -> Any:
    """Returns a mark of a DataFrame or a Series, of which at most some rows and columns are read.

    The rows are evenly spaced, and the first and the last one are among them.
    """
    count = len(frame)
    rows = np.unique(np.linspace(0, count - 1, min(count, _MOST_ROWS)).astype(int))
    part = frame.iloc[rows]
    columns = [part]
    names: list[Any] = [frame.name] if frame.ndim == 1 else list(frame.columns[:_MOST_COLUMNS])
    if frame.ndim > 1:
        columns = [part.iloc[:, index] for index in range(len(names))]
    labels = [*map(str, names), *map(str, part.index)]
    return (frame.shape, fingerprint(labels), *map(_mark_of_column, columns))


def _mark_of_column(column: Any) -> Any:
    array = np.asarray(column)
    if not array.dtype.hasobject:
        return fingerprint(array)
    if column.dtype == object:
        return _marks(array.tolist())
    return fingerprint(list(map(str, array)))  # an own kind of pandas makes new objects each time


def _mark_of_table(table: Any) -> Any:
    """Returns a mark of a table of TensorFlow, whose items are in no order."""
    count = int(table.size()) if tf.executing_eagerly() else 0
    if not 0 < count <= _MOST_ITEMS:
        return count
    keys, values = (part.numpy() for part in table.export())
    order = np.argsort(keys, kind="stable") if keys.ndim == 1 else slice(None)
    return tuple(fingerprint(part[order].tolist()) for part in (keys, values))


def _is_small(variable: Any) -> bool:
    count = variable.shape.num_elements()
    is_read = tf.executing_eagerly() and isinstance(variable, tf.Variable)
    return is_read and count is not None and count * variable.dtype.size <= _MOST_BYTES


def _mark_of_memory(value: Any) -> int | None:
    """Returns a checksum of the memory that an object shows, as those of `ctypes` do."""
    try:
        with memoryview(value) as view:
            return fingerprint(view.tobytes()) if view.nbytes <= _MOST_BYTES else None
    except (TypeError, ValueError, BufferError):  # it shows none
        return None
