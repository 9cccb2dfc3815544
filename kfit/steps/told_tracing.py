"""Tells whoever shows a call, such as a progress bar, that a step is about to be traced."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kfit.heartbeat import Phase
from kfit.heartbeat.task import Heartbeat


class _Thread(threading.local):
    """The function that is told of the tracing in a thread, or None."""

    listener: Callable[[], None] | None = None


_thread = _Thread()


@contextmanager
def telling(listener: Callable[[], None]) -> Iterator[None]:
    """Context in which a function is called before each step that this thread traces.

    Args:
        listener: The function. Within the context, an inner one takes its place.
    """
    before, _thread.listener = _thread.listener, listener
    try:
        yield
    finally:
        _thread.listener = before


@contextmanager
def tracing(heartbeat: Heartbeat) -> Iterator[None]:
    """Context in which a step is traced, and may be compiled and run for the first time.

    Args:
        heartbeat: Reports to this task's supervisor that a step is traced.
    """
    if _thread.listener is not None:
        _thread.listener()
    with heartbeat.phase(Phase.TRACING):
        yield
