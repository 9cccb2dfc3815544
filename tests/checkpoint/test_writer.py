"""One thing is written at a time; what goes wrong is told once."""

import threading
from typing import Any

import pytest

from kfit.checkpoint.writer import Writer


def test_the_next_one_waits() -> None:
    writer, gate, done = Writer(), threading.Event(), []
    writer.submit(lambda: (gate.wait(10), done.append(1)))
    assert writer.is_busy
    threading.Timer(0.05, gate.set).start()
    writer.submit(lambda: done.append(2))
    writer.wait()
    assert done == [1, 2]
    assert not writer.is_busy


def test_a_failure_is_told_once() -> None:
    def fail() -> Any:
        raise OSError(28, "No space left on device")

    writer = Writer()
    writer.submit(fail)
    with pytest.raises(OSError, match="No space left"):
        writer.wait()
    writer.check()
    writer.submit(lambda: None)
    writer.wait()


def test_what_was_written_and_how_long_it_took_is_passed_on_unless_it_failed() -> None:
    writer, told = Writer(), []

    def fail() -> int:
        raise OSError("disk full")

    writer.submit(lambda: 3, lambda result, seconds: told.append((result, seconds >= 0)))
    writer.wait()
    writer.submit(fail, lambda result, seconds: told.append((result, True)))
    with pytest.raises(OSError, match="disk full"):
        writer.wait()
    assert told == [(3, True)]
