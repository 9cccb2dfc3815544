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
