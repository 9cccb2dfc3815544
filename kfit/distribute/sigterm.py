"""Keeps the program's own SIGTERM handler when TensorFlow joins a cluster.

TensorFlow's server, which starts when a task joins a cluster, installs a SIGTERM handler. It only
notifies the tasks of a preemption: without this module, a program that gets the signal outside of
`fit` would continue, and exit with 0.

While TensorFlow joins, which takes about 0.2 s once all tasks have started, its own handler is
installed, and a signal is lost. Nothing can prevent this: TensorFlow holds Python's lock meanwhile,
so no Python code runs in any thread. The SIGKILL that follows a preemption loses no step either.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kfit.heartbeat.signal_handlers import Disposition


@contextmanager
def sigterm_kept() -> Iterator[None]:
    """Context that restores the program's SIGTERM handler at its end.

    TensorFlow replaces the handler when it joins a cluster, so kfit joins a cluster in this
    context. Outside of the main thread the context does nothing, since Python can set signal
    handlers only in the main thread.
    """
    before = Disposition.of(signal.SIGTERM)
    # If it is None, Python does not know what the program that runs Python does with the signal.
    if before.handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        yield
    finally:
        before.restore(signal.SIGTERM)
