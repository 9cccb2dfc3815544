"""Prints the output of many tasks to one terminal, line by line, each with its task's name.

A progress bar rewrites its line by carriage returns or backspaces. The lines of other tasks are
printed in between, so the bar is shown as one live line at the bottom of the terminal, and printed
when it has ended. While it stands still, the live line says what the task is doing. Where there is
no terminal, the state of a bar is printed every few seconds, and what the task is doing if nothing
was printed for some seconds. A notebook, which may be stored, gets whole lines as well.

Whoever prints waits while nobody reads the output, as in `kfit run ... | less`. So the tasks wait,
too. But the supervisor must still act on signals and failures. A thread of its own therefore writes
what `kfit run` itself says, and `kfit run` does not wait for it without a limit.
"""

from __future__ import annotations

import contextlib
import io
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TextIO

from kfit.heartbeat.terminal import columns_of, in_notebook, is_terminal, wrapped
from kfit.supervisor.live_line import ERASE, LiveLine
from kfit.supervisor.raw_writing import write_at_once
from kfit.supervisor.status_lines import StatusLines

# Seconds without output after which the live line says what the tasks are doing.
_QUIET = 1.0
# The same where there is no terminal: whoever reads a file or a pipe later wants few lines.
_QUIET_FILE = 10.0
# Seconds for which `kfit run` waits until what it says is written, if the output is read.
_PATIENCE = 0.5
# Seconds between two looks whether the output is read again.
_LOOK_EVERY = 0.05


class _Nowhere(io.StringIO):
    """A stream that drops what is written to it."""

    def write(self, text: str) -> int:
        return len(text)


class Output:
    """A writer of the output of all tasks to one terminal, such that lines of two tasks never mix.

    What is said by `say`, `tell`, `status` and `close` is written before anything that a thread
    begins to write after the call. Between `begin` and `close` these methods do not wait for a
    reader without a limit, as `write`, `write_raw` and `show` do.

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
        # What is still to be written by whoever has the lock next, and what is set after it.
        self._to_do: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._wake: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._speaker: threading.Thread | None = None
        self._live = LiveLine(*((self.stdout, self.stderr) if is_live else ()))
        self._lines: StatusLines | None = None
        self._is_notebook = in_notebook(stdout)
        if is_live and self._live.stream is None:
            to = self.stdout if self._is_notebook else self.stderr
            self._lines = StatusLines(lambda text: self._write_now(to, f"kfit: {text}\n"))
        self._open_lines: dict[int, str] = {}
        self._status = ""
        self._changed_at = time.monotonic()

    @property
    def has_live_line(self) -> bool:
        """Whether a terminal shows the output, so that a line can be rewritten."""
        return self._live.stream is not None

    @property
    def status_after(self) -> float | None:
        """Seconds of the same state after which `status` is worth a call; None if it never is."""
        if not self.has_live_line and self._lines is None:
            return None
        return _QUIET if self.has_live_line or self._is_notebook else _QUIET_FILE

    @property
    def columns(self) -> int:
        """How many columns a line of stdout may have; 0 if no terminal or notebook shows it."""
        if self._is_notebook and self._lines is not None:
            return columns_of(self.stdout)
        return self._live.columns if self._live.stream is self.stdout else 0

    def begin(self) -> None:
        """Starts the thread that writes what `kfit run` says; without it the caller does so."""
        self._speaker = threading.Thread(target=self._speak, daemon=True)
        self._speaker.start()

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
        with self._turn():
            self._print(stream, text)

    def show(self, rank: int, line: str) -> None:
        """Shows a line that has not ended as the live line, unless one of a lower rank is shown.

        Args:
            rank: The number of the output that the line is of; the chief has the lowest one.
            line: The present state of the line; empty if it has ended.
        """
        with self._turn():
            self._open_lines.pop(rank, None)
            if line.strip():
                self._open_lines[rank] = line
            if rank <= min(self._open_lines, default=rank):
                self._changed_at = time.monotonic()
                self._status = ""
            self._refresh()

    def status(self, text: str) -> None:
        """Says what the tasks are doing, if there was no output for `status_after` seconds.

        A terminal shows it in the live line, and others get few lines of their own.

        Nothing is done if the terminal is not read now, or if another thread is just writing.

        Args:
            text: What the tasks are doing; empty if it is not worth a line.
        """
        if self.status_after is not None and not self.is_blocked() and not self._lock.locked():
            self._do(partial(self._show_status, text))

    def close(self, seconds: float = 0.0) -> None:
        """Removes the live line, when the run has ended, after all that was said is written.

        Args:
            seconds: How long to wait for it, while nobody reads the output.
        """
        done = self._do(self._clear)
        if self._speaker is not None:
            self._wake.put(False)
            if done.wait(seconds):
                self._speaker.join()
            self._speaker = None

    def await_reader(self, seconds: float) -> bool:
        """Waits until the output is read, if it is not read now.

        Args:
            seconds: How long to wait at most.

        Returns:
            Whether it is read again; False as well if it was read all the time.
        """
        end = time.monotonic() + seconds
        was_blocked = self.is_blocked()
        while self.is_blocked() and time.monotonic() < end:
            time.sleep(_LOOK_EVERY)
        return was_blocked and not self.is_blocked()

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
        self.tell(self.stderr, f"{begin}{wrapped(f'kfit: {text}', self.stderr)}")

    def tell(self, stream: TextIO, line: str) -> None:
        """Writes one line, like `write`, from a thread that others wait for.

        Args:
            stream: The attribute `stdout` or `stderr` of this object.
            line: The line, without a line end.
        """
        self._do(partial(self._print, stream, line + "\n"))

    def _do(self, work: Callable[[], None]) -> threading.Event:
        """Has something written before all that follows; waits for a moment if it is read.

        Args:
            work: A function that writes. It is called by a thread that has the lock.

        Returns:
            An event that is set when it is written.
        """
        done = threading.Event()
        self._to_do.append((work, done))
        if self._speaker is None:
            with self._turn():
                return done
        self._wake.put(True)
        if not self.is_blocked():
            done.wait(_PATIENCE)
        return done

    def _speak(self) -> None:
        while self._wake.get():
            with self._turn():
                pass

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Context in which no other thread writes, after what was said before is written."""
        with self._lock:
            while self._to_do:
                work, done = self._to_do.popleft()
                try:
                    work()
                finally:
                    done.set()
            yield

    def _print(self, stream: TextIO, text: str) -> None:
        is_seen = bool(columns_of(stream))
        if is_seen:
            self._live.clear()
        if is_seen or not self.has_live_line:
            self._changed_at = time.monotonic()
        self._write_now(stream, text)
        if is_seen and text.endswith("\n"):
            self._refresh()

    def _write_now(self, stream: TextIO, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            write_at_once(stream, text)

    def _show_status(self, text: str) -> None:
        least = self.status_after
        is_quiet = least is not None and time.monotonic() - self._changed_at >= least
        if self._lines is not None:
            self._lines.say(text if is_quiet else "")
            return
        self._status = text if is_quiet else ""
        self._refresh()
        self._live.draw()

    def _clear(self) -> None:
        self._open_lines.clear()
        self._status = ""
        self._live.clear()

    def _refresh(self) -> None:
        first = min(self._open_lines, default=None)
        self._live.set(self._status or ("" if first is None else self._open_lines[first]))
