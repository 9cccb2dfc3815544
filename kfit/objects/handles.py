"""What a process has open, or made for itself alone: no state of a training.

A program opens its files, sockets, bars and locks anew after a restart; nobody could save them. The
place in a file that is read is another matter: what comes next follows from it.
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
    """Whether a value is of this process alone: what can be closed, locks, threads, loggers.

    None are generators, arrays, and files that are read.
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
    """How far a file has been read; 0 where it is only written, or has been closed."""
    if file.closed or not file.readable():
        return 0
    try:
        return file.tell()
    except OSError:  # one that is read line by line, or a pipe, does not tell
        return "unknown"


def is_open_to_looks(value: Any) -> bool:
    """Whether a value can be asked what it is: stand-ins for objects that are gone raise."""
    try:
        value.__class__  # noqa: B018
        hasattr(value, "__dict__")
    except Exception:
        return False
    return True
