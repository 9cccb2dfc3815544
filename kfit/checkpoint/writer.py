"""Writes snapshots in a background thread while training continues, one snapshot at a time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kfit.heartbeat.tracebacks import place_of_caller, warned_at

_NICE = 10
_T = TypeVar("_T")


def _step_back() -> None:
    """Lowers the scheduling priority of this thread in favor of training; on Linux only."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


class Writer:
    """An object that runs functions in a background thread, to write snapshots during training.

    At most one function runs at a time, so that snapshots do not pile up in memory. If a function
    has raised an error, the next call of `submit`, `wait` or `check` raises this error.

    Attributes:
        seconds: How many seconds the last function took; 0 before the first one has returned.
    """

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.seconds = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether a function is running in the background thread."""
        return self._thread is not None and self._thread.is_alive()

    def submit(
        self, write: Callable[[], _T], done: Callable[[_T, float], object] | None = None
    ) -> None:
        """Waits until the previous function has returned, then starts `write` in the thread.

        Args:
            write: The function, which writes a snapshot.
            done: A function that is called in the thread after `write`, unless `write` has raised
                an error. It gets the result of `write`, and how many seconds `write` took.

        Raises:
            BaseException: The error of the previous function, if `wait` or `check` has not raised
                this error yet. Then `write` is not started.
        """
        self.wait()
        place = place_of_caller()

        def work() -> None:
            _step_back()
            begun = time.monotonic()
            try:
                with warned_at(place):
                    result = write()
                if done is not None:
                    done(result, time.monotonic() - begun)
            except BaseException as error:
                self._error = error
            self.seconds = time.monotonic() - begun

        # Not a daemon thread: a process that ends normally waits until the write is complete.
        self._thread = threading.Thread(target=work, name="kfit-snapshot-writer")
        self._thread.start()

    def wait(self) -> None:
        """Waits until the current function has returned, if one is running.

        Raises:
            BaseException: The error of the last function, also if the function had returned before
                this call. An error is raised only once.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def check(self) -> None:
        """Raises the error with which the last function has failed, if it has already failed.

        If the function is still running, the method does not wait, and raises nothing.

        Raises:
            BaseException: The error of the last function. An error is raised only once.
        """
        error = self._error
        if error is not None:  # only then: the thread may set it at any time
            self._error = None
            raise error
