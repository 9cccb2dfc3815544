"""Prints the output of many tasks to one terminal, line by line, each with its task's name.

A progress bar rewrites its line by carriage returns or backspaces. That is not possible here, since
lines of other tasks are printed in between. So only the last state of such a line is printed: when
the line ends, and every few seconds until then.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import threading
import time
from collections.abc import Callable
from typing import IO, TextIO

_CHUNK = 65536
_LONGEST_LINE = 65536
# Seconds after which the state of a line that has not ended is printed.
_PEEK_INTERVAL = 5.0


class LineAssembler:
    """A splitter of a task's output into lines, each as a terminal would show the line in the end.

    A line that was rewritten, such as a progress bar, is returned only in its last state.
    """

    def __init__(self) -> None:
        self._open = b""

    @property
    def has_open_line(self) -> bool:
        """Whether there is a line that has not ended."""
        return bool(self._open)

    def feed(self, chunk: bytes) -> list[str]:
        """Adds a chunk of output, and returns the lines that are now complete.

        Args:
            chunk: The bytes that were read; they may end anywhere, even within a character.

        Returns:
            The lines, without line ends. A very long line is split.
        """
        *ended, self._open = (self._open + chunk).split(b"\n")
        lines = [_visible(line) for line in ended]
        # Overwritten text is dropped. Otherwise an hour of a progress bar would be one huge line.
        rewritten = self._open.rstrip(b"\r").rfind(b"\r")
        if rewritten >= 0:
            self._open = self._open[rewritten + 1 :]
        if len(self._open) > _LONGEST_LINE:
            lines.extend(self.flush())
        return lines

    def flush(self) -> list[str]:
        """Ends the line that has not ended, and returns it as a list of one line.

        The list is empty if every line has ended, or if the line that has not ended is blank.
        """
        line, self._open = _visible(self._open), b""
        return [line] if line.strip() else []


class Output:
    """A writer of the output of all tasks to one terminal, such that lines of two tasks never mix.

    Args:
        stdout: The stream to which the tasks' standard output is written.
        stderr: The stream to which the tasks' standard error and the messages of `kfit run` are
            written.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self.stdout = stdout
        self.stderr = stderr
        self._lock = threading.Lock()

    def write(self, stream: TextIO, line: str) -> None:
        """Writes one line; nothing if the stream is closed, as after `kfit run ... | head`.

        Args:
            stream: The attribute `stdout` or `stderr` of this object.
            line: The line, without a line end.
        """
        with self._lock, contextlib.suppress(OSError, ValueError):
            stream.write(line + "\n")
            stream.flush()

    def is_blocked(self) -> bool:
        """Returns whether writing would have to wait, as after Ctrl-S, or in `kfit run ... | less`.

        Tasks that cannot write their output wait, too, and must not be taken for hung.
        """
        files = []
        for stream in (self.stdout, self.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                files.append(stream.fileno())
        try:
            return len(select.select([], files, [], 0)[1]) < len(set(files))
        except (OSError, ValueError):
            return False

    def say(self, text: str) -> None:
        """Writes a message of `kfit run` itself to stderr, after "kfit: "."""
        self.write(self.stderr, f"kfit: {text}")


def pump(pipe: IO[bytes], emit: Callable[[str], None]) -> None:
    """Reads a task's output until the output ends, and passes each line to `emit`.

    The function runs in a thread of its own, since it waits for output. A line that is not complete
    is passed on after a few seconds, so that a progress bar is seen.

    Args:
        pipe: The reading end of the task's output.
        emit: A function that is called with each line.
    """
    assembler = LineAssembler()
    # The time when the line that has not ended began, or was last passed on.
    opened_at: float | None = None
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
            if chunk == b"" or (opened_at is not None and now - opened_at >= _PEEK_INTERVAL):
                lines += assembler.flush()
                opened_at = None
            for line in lines:
                emit(line)
            if chunk == b"":
                return


def _visible(line: bytes) -> str:
    line = line.rstrip(b"\r")
    text = line[line.rfind(b"\r") + 1 :].decode(errors="replace")
    if "\b" not in text:
        return text
    shown: list[str] = []
    for character in text:
        if character != "\b":
            shown.append(character)
        elif shown:
            shown.pop()
    return "".join(shown)
