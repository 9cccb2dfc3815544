"""Keeps the program's own SIGTERM handler when TensorFlow joins a cluster.

TensorFlow's server of a task installs a SIGTERM handler, to notify the tasks of a preemption, and
nothing else reacts to the signal: a program that got it outside of `fit` would continue, and exit
with 0.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Restores the SIGTERM handler after the block; does nothing outside of the main thread.

    Python sets signal handlers only in the main thread.
    """
    before = signal.getsignal(signal.SIGTERM)
    # None: the handler was not installed from Python, so Python cannot install it again.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
