import fcntl
import os
import pty
import select
import struct
import termios

import pyte
import pytest

from kfit.supervisor.live_line import LiveLine


def test_a_terminal_may_be_resized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    reader, writer = pty.openpty()
    screen = pyte.Screen(60, 10)
    seen = pyte.ByteStream(screen)
    with os.fdopen(writer, "w") as stream:

        def resize(columns: int) -> None:
            fcntl.ioctl(writer, termios.TIOCSWINSZ, struct.pack("HHHH", 10, columns, 0, 0))
            screen.resize(10, columns)

        resize(60)
        live = LiveLine(stream)
        for columns in (60, 40, 80, 20):
            resize(columns)
            live.set("x" * 100)
            live.draw()
            seen.feed(os.read(reader, 10_000))
            lines = [line.rstrip() for line in screen.display if line.strip()]
            assert lines == ["x" * (columns - 3)]
        live.clear()
        seen.feed(os.read(reader, 10_000))
        assert not "".join(screen.display).strip()
    os.close(reader)


def test_a_line_that_changes_often_is_drawn_in_its_last_state() -> None:
    reader, writer = pty.openpty()
    with os.fdopen(writer, "w") as stream:
        live = LiveLine(stream)
        for step in range(1000):
            live.set(f"step {step}")
        live.draw()
        drawn = b""
        # The other side of a terminal may pass on what was written in several parts.
        while not drawn.endswith(b"step 999") and select.select([reader], [], [], 10)[0]:
            drawn += os.read(reader, 100_000)
    os.close(reader)
    assert drawn.endswith(b"step 999")
    assert drawn.count(b"step") < 100
