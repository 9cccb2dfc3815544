"""Recognizes objects that belong to one process only, and so are no state of a training.

Files, sockets, progress bars and locks cannot be saved; a program creates them again after a
restart. The position in a file that is being read is state, since it decides what is read next.
"""

from __future__ import annotations

import io
import logging
import threading
import types
import weakref
from concurrent.futures import Executor
from typing import Any

_OF_PROCESS = (
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Thread,
    threading.Condition,
    Executor,
    logging.Logger,
    logging.Handler,
    weakref.ReferenceType,
)


def is_handle(value: Any) -> bool:
    """Whether a value belongs to this process only: it can be closed, or is a lock or thread.

    Loggers and weak references do, too. Python's generators, arrays, and files of which a part has
    been read do not.
    """
    kind = type(value)
    if issubclass(kind, _OF_PROCESS):
        return True
    if issubclass(kind, types.GeneratorType) or not callable(getattr(kind, "close", None)):
        return False
    if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__"):
        return False
    return not isinstance(value, io.IOBase) or not place_in(value)


def place_in(file: io.IOBase) -> Any:
    """The position in a file that is read: 0 if it is write-only or closed, or "unknown"."""
    if file.closed or not file.readable():
        return 0
    try:
        return file.tell()
    except OSError:  # a pipe, or a file that a `for` loop reads, has no position
        return "unknown"


def is_open_to_looks(value: Any) -> bool:
    """Whether a value can be inspected. A weak proxy raises once its object has been deleted."""
    try:
        value.__class__  # noqa: B018
        hasattr(value, "__dict__")
    except Exception:
        return False
    return True
