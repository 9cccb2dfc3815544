"""Writes snapshots while training goes on: one at a time, in a thread."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

_NICE = 10


def _step_back() -> None:
    """Lowers the scheduling priority of this thread, on Linux only."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class Writer:
    """Does one piece of writing after the other, and keeps what went wrong.

    At most one is under way, so that no more than one snapshot is held in memory.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._thread is not None and self._thread.is_alive()

    def submit(self, write: Callable[[], object]) -> None:
        """Waits for what is under way, then starts `write`.

        Raises:
            BaseException: What the last one failed with.
        """
        self.wait()

        def work() -> None:
            _step_back()
            begun = time.monotonic()
            try:
                write()
            except BaseException as error:
                self._error = error
            self.seconds = time.monotonic() - begun

        # No daemon: a process that ends by itself finishes what it has begun to write.
        self._thread = threading.Thread(target=work, name="kfit-snapshot-writer")
        self._thread.start()

    def wait(self) -> None:
        """Waits for what is under way.

        Raises:
            BaseException: What it failed with.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Returns at once.

        Raises:
            BaseException: What the last writing failed with, once.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
