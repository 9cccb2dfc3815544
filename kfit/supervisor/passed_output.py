"""Passes the output of a single task on as it is, without its name before each line.

A single task keeps the terminal: its stdout is that of `kfit run`. Only its stderr goes through
this process, which leaves out TensorFlow's start-up messages. So that the task still finds a
terminal on stderr, its stderr is a pseudoterminal if that of `kfit run` is a terminal. If the
output is logged, stdout goes through this process as well, in the same way.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import struct
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

from kfit.heartbeat.terminal import is_terminal
from kfit.supervisor.line_assembler import LineAssembler
from kfit.supervisor.start_up_messages import StartUpFilter

_CHUNK = 65536
_STDERR = 2
# Seconds between two looks at the size of the terminal, which the user may change.
_LOOK_INTERVAL = 0.5


@dataclass(frozen=True)
class Channel:
    """The two ends of what a task writes its output to.

    Attributes:
        reader: The file descriptor from which this process reads the output.
        writer: The file descriptor that the task writes to; this process closes it after the start.
        terminal: The terminal whose size the channel has; None if the channel is a pipe.
    """

    reader: int
    writer: int
    terminal: TextIO | None = None

    @classmethod
    def like(cls, stream: TextIO) -> Channel:
        """Returns a new pseudoterminal if `stream` is a terminal, otherwise a new pipe."""
        if not is_terminal(stream):
            return cls(*os.pipe())
        reader, writer = os.openpty()
        # The bytes arrive as they were written; the real terminal adds its carriage returns.
        modes = termios.tcgetattr(writer)
        modes[1] &= ~termios.OPOST
        termios.tcsetattr(writer, termios.TCSANOW, modes)
        channel = cls(reader, writer, stream)
        channel.resize()
        return channel

    def resize(self) -> None:
        """Gives the pseudoterminal the present size of the real terminal."""
        if self.terminal is None:
            return
        with contextlib.suppress(OSError, ValueError):
            size = os.get_terminal_size(self.terminal.fileno())
            packed = struct.pack("HHHH", size.lines, size.columns, 0, 0)
            fcntl.ioctl(self.reader, termios.TIOCSWINSZ, packed)

    def read(self) -> bytes | None:
        """Waits for output, and returns it; None if there is none yet, b"" when it has ended."""
        if not select.select([self.reader], [], [], _LOOK_INTERVAL)[0]:
            return None
        try:
            return os.read(self.reader, _CHUNK)
        except OSError:  # Linux raises it when no process has the pseudoterminal open any more
            return b""


def pass_on(
    channel: Channel,
    write: Callable[[str], None],
    keep: Callable[[str], None],
    *,
    is_filtered: bool,
) -> None:
    """Reads a task's output until it ends, and writes it as it is.

    The function runs in a thread of its own, since it waits for output.

    Args:
        channel: What the task writes to. It is closed at the end.
        write: A function that writes a text to the stream of `kfit run`.
        keep: A function that is called with each line, also with those that are not written.
        is_filtered: Whether TensorFlow's start-up messages are left out.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    assembler, start_up = LineAssembler(), StartUpFilter()
    try:
        while (chunk := channel.read()) != b"":
            channel.resize()
            if chunk is None:
                continue
            for line in assembler.feed(chunk):
                keep(line.text)
            if text := decoder.decode(start_up.feed(chunk) if is_filtered else chunk):
                write(text)
        if text := decoder.decode(start_up.flush(), final=True):
            write(text)
        for line in assembler.flush():
            keep(line.text)
    finally:
        os.close(channel.reader)


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Context in which TensorFlow's start-up messages do not reach the stderr of this process.

    It is for a command of kfit that imports TensorFlow itself. What others write to the file
    descriptor of stderr passes. With `TF_CPP_MIN_LOG_LEVEL=0` nothing is left out.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2") == "0":
        yield
        return
    channel, before = Channel.like(sys.stderr), os.dup(_STDERR)
    os.dup2(channel.writer, _STDERR)
    os.close(channel.writer)
    passing = threading.Thread(
        target=pass_on,
        args=(channel, lambda text: os.write(before, text.encode()), lambda _: None),
        kwargs={"is_filtered": True},
        daemon=True,  # processes that were started here may keep the channel open
    )
    passing.start()
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, _STDERR)
        passing.join(timeout=5)
