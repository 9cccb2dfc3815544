"""The line at the bottom of a terminal that is rewritten in place, such as a progress bar."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TextIO

from kfit.heartbeat.terminal import columns_of, cut, is_terminal
from kfit.supervisor.raw_writing import write_at_once

ERASE = "\r\x1b[K"
"""What removes the text of a terminal's present line."""
# Columns that stay free: after Ctrl-C the terminal itself writes "^C" there, which must not wrap.
_ECHO = 2
# The least seconds between two states of the line: more would only cost the terminal time.
_INTERVAL = 0.05


class LiveLine:
    """A line that is rewritten in place in a terminal.

    The line is never wider than the terminal, since a wrapped line could not be rewritten. The
    width is read each time, so that the terminal may be resized.

    Args:
        streams: The streams that may be shown in a terminal. The first one that is gets the line;
            if none is, nothing is ever written.

    Attributes:
        stream: The stream that gets the line; None if there is none.
    """

    def __init__(self, *streams: TextIO) -> None:
        self.stream = next((stream for stream in streams if is_terminal(stream)), None)
        self._text = ""
        self._drawn = ""
        self._drawn_at = 0.0

    @property
    def columns(self) -> int:
        """The greatest width of the line; 0 if no terminal shows it."""
        columns = columns_of(self.stream)
        return max(1, columns - _ECHO) if columns else 0

    def set(self, text: str) -> None:
        """Sets the text of the line, which is drawn at once, or soon if it was just drawn."""
        self._text = text
        if time.monotonic() - self._drawn_at >= _INTERVAL or not text:
            self.draw()

    def draw(self) -> None:
        """Draws the line, if its text or the width of the terminal has changed."""
        if self.stream is None:
            return
        text = cut(self._text, self.columns)
        if text != self._drawn and self._is_in_foreground():
            self._drawn_at = time.monotonic()
            self._write(self._erasing() + text)
            self._drawn = text

    def clear(self) -> None:
        """Removes the line from the terminal, so that other lines can be written in its place."""
        if self._drawn:
            self._write(self._erasing())
            self._drawn = ""

    def _erasing(self) -> str:
        return ERASE if self._drawn else ""

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            assert self.stream is not None
            write_at_once(self.stream, text)

    def _is_in_foreground(self) -> bool:
        """Returns whether this process may write to the terminal while a shell uses it as well."""
        assert self.stream is not None
        try:
            return os.tcgetpgrp(self.stream.fileno()) == os.getpgrp()
        except (OSError, ValueError):  # the terminal belongs to no shell
            return True
