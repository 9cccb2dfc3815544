"""Recognizes objects that belong to one process only, and so are not part of a training's state.

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
    *weakref.ProxyTypes,
)


def is_handle(value: Any) -> bool:
    """Returns whether a value belongs to this process only, such as a socket or a lock.

    Such a value cannot be saved, and no warning is given if it has changed: after a restart the
    program makes it anew. The result is True for locks, threads, executors, loggers and weak
    references, and for most objects with a method `close`. It is False for Python's generators, for
    arrays, and for files of which a part has been read, even if they have this method.
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
    """Returns the position in a file that the program reads, to detect that it has read on.

    The result is 0 if the file is closed or was not opened for reading, and "unknown" if the file
    cannot tell its position, such as a pipe.
    """
    if file.closed or not file.readable():
        return 0
    try:
        return file.tell()
    except OSError:  # a pipe, or a file that a `for` loop reads, has no position
        return "unknown"


def is_open_to_looks(value: Any) -> bool:
    """Returns whether the class and the attributes of a value can be read without an error.

    A weak proxy, for example, raises an error once its object has been deleted.
    """
    try:
        value.__class__  # noqa: B018
        hasattr(value, "__dict__")
    except Exception:
        return False
    return True
