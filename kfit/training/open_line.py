"""`OpenLine`: the line of a progress bar that has not ended, and that leaves for other lines."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kfit.heartbeat.terminal import WIDTH_VARIABLE, columns_of, columns_of_output, in_notebook
from kfit.internals.patching import Point, patched

_BECAUSE = "a line must not be printed behind the progress bar"
ERASE = "\r\x1b[2K"
"""What erases a line of a terminal, so that it can be written anew."""


class OpenLine:
    """The line of a progress bar that has not ended, and that leaves for what others print.

    Others are the user's callbacks, warnings, and kfit itself. Without this, what they print would
    begin behind the bar, and an old state of the bar would stay in that line.

    Attributes:
        width: How many columns the present state of the line takes; 0 if there is no open line.
    """

    def __init__(self) -> None:
        self.width = 0
        self._lock = threading.RLock()
        self._is_drawing = False
        self._other_is_open = False  # whether what others printed last has not ended its line
        self._process = os.getpid()

    @contextmanager
    def drawing(self) -> Iterator[None]:
        """Context in which the bar prints its line, while other threads wait."""
        with self._lock:
            was_drawing, self._is_drawing = self._is_drawing, True
            try:
                if self._other_is_open:
                    sys.stdout.write("\n")
                    self._other_is_open = False
                yield
            finally:
                self._is_drawing = was_drawing

    def leave(self) -> None:
        """Removes the line where it can be rewritten, and ends it elsewhere."""
        if not self.width:
            return
        with self.drawing():
            if not columns_of_output():
                sys.stdout.write("\n")
            elif in_notebook(sys.stdout):  # it does not know the sequence that erases a line
                sys.stdout.write(f"\r{' ' * self.width}\r")
            else:
                sys.stdout.write(ERASE)
            sys.stdout.flush()
            self.width = 0

    @contextmanager
    def leaving_for_others(self) -> Iterator[None]:
        """Context in which the line leaves before anything else is printed beside it."""
        streams = [sys.stdout]
        # Under a supervisor, it is the supervisor that prints stderr beside the bar.
        if WIDTH_VARIABLE not in os.environ and columns_of(sys.stderr):
            streams.append(sys.stderr)
        with ExitStack() as stack:
            for stream in streams:
                if hasattr(stream, "__dict__"):
                    stack.enter_context(patched(Point(stream, "write", _BECAUSE), self._polite))
            yield

    def _polite(self, write: Callable[[str], Any]) -> Callable[[str], Any]:
        """Returns a stream's method `write` that lets the line leave first."""

        def write_beside(text: str) -> Any:
            if os.getpid() != self._process:  # another thread of the parent may hold the lock
                return write(text)
            with self._lock:
                if self._is_drawing or not text:
                    return write(text)
                rest = text
                if self.width:
                    self.leave()
                    # Many callbacks begin with an empty line only to leave that of the bar.
                    rest = text.removeprefix("\n")
                self._other_is_open = bool(rest) and not rest.endswith("\n") and "\r" not in rest
                write(rest)
                return len(text)

        return write_beside
