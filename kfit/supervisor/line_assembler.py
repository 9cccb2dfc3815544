"""Splits the output of a task into lines, each as a terminal would show it in the end."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from typing import IO, NamedTuple

from kfit.heartbeat.terminal import visible

_CHUNK = 65536
_LONGEST_LINE = 65536
# The control sequence that erases a line, by which a progress bar makes room for another line.
_ERASED = b"\x1b[2K"
# Seconds after which the state of a line that has not ended is printed, if it is not shown live.
_PEEK_INTERVAL = 10.0


class Line(NamedTuple):
    """A line of a task's output.

    Attributes:
        text: What a terminal shows of the line, with its colors.
        is_rewritten: Whether the task has rewritten the line, as a progress bar does. What follows
            a progress bar that was erased is a line like any other.
    """

    text: str
    is_rewritten: bool = False


class LineAssembler:
    """A splitter of a task's output into lines, each as a terminal would show the line in the end.

    A line that was rewritten, such as a progress bar, is returned only in its last state.
    """

    def __init__(self) -> None:
        self._open = b""
        self._is_rewritten = False

    @property
    def has_open_line(self) -> bool:
        """Whether there is a line that has not ended."""
        return bool(self._open)

    @property
    def open_line(self) -> Line:
        """The present state of the line that has not ended; empty if every line has ended."""
        return Line(visible(self._open), self._is_rewritten)

    def feed(self, chunk: bytes) -> list[Line]:
        """Adds a chunk of output, and returns the lines that are now complete.

        Args:
            chunk: The bytes that were read; they may end anywhere, even within a character.

        Returns:
            The lines, without line ends. A very long line is split.
        """
        *ended, self._open = (self._open + chunk).split(b"\n")
        lines = []
        for line in ended:
            lines.append(Line(visible(line), self._rewrites(line)))
            self._is_rewritten = False
        # Overwritten text is dropped. Otherwise an hour of a progress bar would be one huge line.
        self._is_rewritten = self._rewrites(self._open)
        rewritten = self._open.rstrip(b"\r").rfind(b"\r")
        if rewritten >= 0:
            self._open = self._open[rewritten + 1 :]
        if len(self._open) > _LONGEST_LINE:
            lines.extend(self.flush())
        return lines

    def flush(self) -> list[Line]:
        """Ends the line that has not ended, and returns it as a list of one line.

        The list is empty if every line has ended, or if the line that has not ended is blank.
        """
        line = self.open_line
        self._open, self._is_rewritten = b"", False
        return [line] if line.text.strip() else []

    def _rewrites(self, line: bytes) -> bool:
        """Returns whether a line was rewritten since it was last erased as a whole."""
        *erased, rest = line.split(_ERASED)
        was_rewritten = self._is_rewritten and not erased
        return was_rewritten or b"\r" in rest.rstrip(b"\r") or b"\b" in rest


def pump(
    pipe: IO[bytes],
    emit: Callable[[Line], None],
    show: Callable[[Line], None] | None = None,
) -> None:
    """Reads a task's output until the output ends, and passes each line to `emit`.

    The function runs in a thread of its own, since it waits for output. A line that has not ended
    is passed to `show`. Without `show` it is passed to `emit` after a few seconds, so that a
    progress bar is seen.

    Args:
        pipe: The reading end of the task's output.
        emit: A function that is called with each line that has ended.
        show: A function that shows the line that has not ended, where it can be rewritten. It is
            called with each state of this line, and with an empty line when it has ended.
    """
    assembler = LineAssembler()
    # The time when the line that has not ended began, or was last passed on.
    opened_at: float | None = None
    shown = Line("")
    with pipe, selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            chunk = os.read(pipe.fileno(), _CHUNK) if selector.select(_PEEK_INTERVAL) else None
            lines = assembler.feed(chunk) if chunk else []
            now = time.monotonic()
            if not assembler.has_open_line:
                opened_at = None
            elif lines or opened_at is None:
                opened_at = now
            is_late = show is None and opened_at is not None and now - opened_at >= _PEEK_INTERVAL
            if chunk == b"" or is_late:
                lines += assembler.flush()
                opened_at = None
            if show is not None and shown.text and lines:
                show(shown := Line(""))
            for line in lines:
                emit(line)
            if show is not None and (state := assembler.open_line) != shown:
                show(shown := state)
            if chunk == b"":
                return
