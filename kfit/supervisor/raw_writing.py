"""Writes to a stream in such a way that a thread may be left that waits for the stream's reader.

Python flushes `sys.stdout` and `sys.stderr` when it ends, and for that needs the lock of their
buffer. A thread that has this lock, and waits for somebody to read the output, would abort the
process. So kfit writes what it prints past the buffer.
"""

from __future__ import annotations

import io
import select
from typing import TextIO


def write_at_once(stream: TextIO, text: str) -> None:
    """Writes a text to a stream, after what was written to the stream before, and flushes it.

    Args:
        stream: The stream. If it is not one of a file of the system, its own method writes.
        text: The text.

    Raises:
        OSError: If the text cannot be written, for example because nobody can read it any more.
        ValueError: If the stream is closed, or its encoding does not have a character of the text.
    """
    raw = _raw_of(stream)
    if raw is None:
        stream.write(text)
        stream.flush()
        return
    stream.flush()
    rest = memoryview(text.encode(stream.encoding, stream.errors or "strict"))
    while rest:
        written = raw.write(rest)
        if written is None:  # the stream is non-blocking, and its reader is slow
            select.select([], [raw], [])
        else:
            rest = rest[written:]


def _raw_of(stream: TextIO) -> io.FileIO | None:
    """Returns the file below the buffer of a stream; None if the stream is of another kind."""
    if type(stream) is not io.TextIOWrapper or type(stream.buffer) is not io.BufferedWriter:
        return None
    raw = stream.buffer.raw
    return raw if isinstance(raw, io.FileIO) else None
