"""Prints the output of many tasks to one terminal, line by line, each with its task's name.

A progress bar rewrites its line by carriage returns or backspaces. The lines of other tasks are
printed in between, so the bar is shown as one live line at the bottom of the terminal, and printed
when it has ended. While it stands still, the live line says what the task is doing. Where there is
no terminal, the state of a bar is printed every few seconds. A notebook, which may be stored, gets
whole lines as well, also of what the task is doing.
"""

from __future__ import annotations

import contextlib
import io
import select
import threading
import time
from typing import TextIO

from kfit.heartbeat.terminal import columns_of, in_notebook, is_terminal
from kfit.supervisor.live_line import ERASE, LiveLine
from kfit.supervisor.status_lines import StatusLines

# Seconds without output after which the live line says what the tasks are doing.
_QUIET = 1.0


class _Nowhere(io.StringIO):
    """A stream that drops what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


class Output:
    """A writer of the output of all tasks to one terminal, such that lines of two tasks never mix.

    Args:
        stdout: The stream to which the tasks' standard output is written.
        stderr: The stream to which the tasks' standard error and the messages of `kfit run` are
            written.
        is_live: Whether a terminal may show a live line. If not, a task writes directly to the
            terminal.

    Either stream may be None, as `sys.stdout` is in a process that was started without one. What is
    written to it is dropped.
    """

    def __init__(
        self, stdout: TextIO | None, stderr: TextIO | None, *, is_live: bool = True
    ) -> None:
        self.stdout: TextIO = _Nowhere() if stdout is None else stdout
        self.stderr: TextIO = _Nowhere() if stderr is None else stderr
        self._is_live = is_live
        self._lock = threading.Lock()
        self._live = LiveLine(*((self.stdout, self.stderr) if is_live else ()))
        self._lines: StatusLines | None = None
        if is_live and in_notebook(stdout):
            self._lines = StatusLines(lambda text: self._write_now(self.stdout, f"kfit: {text}\n"))
        self._open_lines: dict[int, str] = {}
        self._status = ""
        self._changed_at = time.monotonic()

    @property
    def has_live_line(self) -> bool:
        """Whether a terminal shows the output, so that a line can be rewritten."""
        return self._live.stream is not None

    @property
    def columns(self) -> int:
        """How many columns a line of stdout may have; 0 if no terminal or notebook shows it."""
        if self._lines is not None:
            return columns_of(self.stdout)
        return self._live.columns if self._live.stream is self.stdout else 0

    def write(self, stream: TextIO, line: str) -> None:
        """Writes one line; nothing if the stream is closed, as after `kfit run ... | head`.

        Args:
            stream: The attribute `stdout` or `stderr` of this object.
            line: The line, without a line end.
        """
        self.write_raw(stream, line + "\n")

    def write_raw(self, stream: TextIO, text: str) -> None:
        """Writes a text that may contain several lines or a part of a line.

        Args:
            stream: The attribute `stdout` or `stderr` of this object.
            text: The text.
        """
        with self._lock:
            is_seen = bool(columns_of(stream))
            if is_seen:
                self._live.clear()
                self._changed_at = time.monotonic()
            self._write_now(stream, text)
            if is_seen and text.endswith("\n"):
                self._refresh()

    def show(self, rank: int, line: str) -> None:
        """Shows a line that has not ended as the live line, unless one of a lower rank is shown.

        Args:
            rank: The number of the output that the line is of; the chief has the lowest one.
            line: The present state of the line; empty if it has ended.
        """
        with self._lock:
            self._open_lines.pop(rank, None)
            if line.strip():
                self._open_lines[rank] = line
            if rank <= min(self._open_lines, default=rank):
                self._changed_at = time.monotonic()
                self._status = ""
            self._refresh()

    def status(self, text: str) -> None:
        """Says what the tasks are doing, if there was no output for a second.

        A terminal shows it in the live line, and a notebook in few lines of their own.

        Nothing is done if the terminal is not read now, or if another thread is just writing.

        Args:
            text: What the tasks are doing; empty if it is not worth a line.
        """
        is_shown = self.has_live_line or self._lines is not None
        if not is_shown or self.is_blocked() or not self._lock.acquire(blocking=False):
            return
        try:
            is_quiet = time.monotonic() - self._changed_at >= _QUIET
            if self._lines is not None:
                self._lines.say(text if is_quiet else "")
                return
            self._status = text if is_quiet else ""
            self._refresh()
            self._live.draw()
        finally:
            self._lock.release()

    def close(self) -> None:
        """Removes the live line, when the run has ended."""
        with self._lock:
            self._open_lines.clear()
            self._status = ""
            self._live.clear()

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

    def say(self, text: str, *, after_key: bool = False) -> None:
        """Writes a message of `kfit run` itself to stderr, after "kfit: ".

        Args:
            text: The message.
            after_key: Whether it may follow Ctrl-C, which the terminal shows as "^C": in an empty
                line, or in the line of a task that writes directly to the terminal.
        """
        begin = ""
        if after_key and is_terminal(self.stderr):
            begin = ERASE if self._is_live else "\n"
        self.write(self.stderr, f"{begin}kfit: {text}")

    def _write_now(self, stream: TextIO, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            stream.write(text)
            stream.flush()

    def _refresh(self) -> None:
        first = min(self._open_lines, default=None)
        self._live.set(self._status or ("" if first is None else self._open_lines[first]))
