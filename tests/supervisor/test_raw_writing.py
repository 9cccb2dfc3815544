"""Writing past the buffer of a stream."""

import io
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kfit.supervisor.raw_writing import write_at_once


def test_what_was_printed_before_comes_first(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w", encoding="latin-1", errors="replace") as stream:
        stream.write("one ")
        write_at_once(stream, "zw\u00f6lf \u30c6\n")
        stream.write("three")
    assert (tmp_path / "file").read_bytes() == b"one zw\xf6lf ?\nthree"


def test_a_stream_without_a_file() -> None:
    stream = io.StringIO()
    write_at_once(stream, "text")
    assert stream.getvalue() == "text"


def test_a_reader_that_is_slow_gets_all_of_it_from_a_non_blocking_stream() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "rb") as other_end:
        thread = threading.Thread(target=write_at_once, args=(stream, "x" * 300_000))
        thread.start()
        time.sleep(0.2)
        assert other_end.read(300_000) == b"x" * 300_000
        thread.join()


def test_what_cannot_be_written_is_told_and_leaves_nothing_in_the_buffer() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream, pytest.raises(BrokenPipeError):
        write_at_once(stream, "nobody reads this")


def test_a_thread_that_waits_for_a_reader_does_not_disturb_the_end_of_python() -> None:
    program = """if True:
        import sys, threading, time
        from kfit.supervisor.raw_writing import write_at_once
        for _ in range(2):
            work = threading.Thread(target=write_at_once, args=(sys.stdout, "x" * 300_000))
            work.daemon = True
            work.start()
        time.sleep(0.2)
        raise SystemExit(3)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.wait(60) == 3
    assert process.communicate()[1] == b""
