"""SIGTERM stays what the program made of it, though TensorFlow joins a cluster.

TensorFlow's servers of a cluster listen for SIGTERM, to tell the tasks of a preemption, and
swallow it: a program that got it outside of `fit` would go on, and end well.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """After it SIGTERM does what it did before; in the main thread, the only one that can say so.

    Within it SIGTERM ends the process as well: TensorFlow may wait there for ever.
    """
    before = signal.getsignal(signal.SIGTERM)
    # None: something that is not Python has set it, which Python cannot set again.
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
