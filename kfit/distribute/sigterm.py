"""Keeps the program's own SIGTERM handler when TensorFlow joins a cluster.

TensorFlow's server of a task installs a SIGTERM handler, which only notifies the tasks of a
preemption. A program that got the signal outside of `fit` would continue, and exit with 0.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Context that restores the SIGTERM handler at its end.

    Outside of the main thread it does nothing, since Python sets signal handlers only in that
    thread.
    """
    before = signal.getsignal(signal.SIGTERM)
    # If it is None, the handler was not installed from Python, so Python cannot install it again.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
