import io
import os
import threading
import time

import pyte
import pytest

from kfit.supervisor import live_line, output
from kfit.supervisor.output import Output


class Slow(io.StringIO):
    """A stream that lets others in between two pieces of one write, as a terminal may."""

    def write(self, text: str) -> int:
        for start in range(0, len(text), 20):
            super().write(text[start : start + 20])
            time.sleep(0.0001)
        return len(text)


def test_lines_of_two_tasks_do_not_mix() -> None:
    stream = Slow()
    shared = Output(stream, stream)

    def write(name: str) -> None:
        for _ in range(100):
            shared.write(stream, name * 50)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 300
    assert set(lines) == {"a" * 50, "b" * 50, "c" * 50}


def test_a_reader_that_has_gone_stops_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    Output(stream, stream).write(stream, "nobody reads this")
    stream.close()  # nothing is left to be written


def test_who_says_something_does_not_wait_for_a_reader_who_then_gets_all_of_it() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream, os.fdopen(reader, "r") as other_end:
        shared = Output(stream, stream)
        shared.begin()
        tasks = [
            threading.Thread(target=lambda: [shared.write(stream, "x" * 999) for _ in range(200)])
            for _ in range(2)
        ]
        for each in tasks:
            each.start()
        while not shared.is_blocked():
            time.sleep(0.01)
        begin = time.monotonic()
        shared.say("first")
        shared.status("working")
        shared.tell(stream, "second")
        shared.close(0.01)
        assert not shared.await_reader(0.01)
        later = threading.Thread(target=shared.write, args=(stream, "third"))
        later.start()
        assert time.monotonic() - begin < 0.4
        lines = [other_end.readline() for _ in range(403)]
        for each in (*tasks, later):
            each.join()
    told = [line for line in lines if not line.startswith("x")]
    assert told == ["kfit: first\n", "second\n", "third\n"]
    assert lines.index("kfit: first\n") < 300  # it did not have to wait for all tasks


def test_what_is_said_is_written_when_it_returns() -> None:
    stream = io.StringIO()
    shared = Output(stream, stream)
    shared.begin()
    for number in range(100):
        shared.say(f"{number}")
        assert stream.getvalue().endswith(f"kfit: {number}\n")
    shared.close(10)
    assert not [each for each in threading.enumerate() if each.daemon and "speak" in each.name]


def test_without_streams_nothing_is_written() -> None:
    shared = Output(None, None)
    shared.write(shared.stdout, "nobody reads this")
    shared.say("nor this")
    shared.status("working")
    assert not shared.is_blocked()
    assert not shared.columns


class Terminal(io.StringIO):
    """A stream that is a terminal of 80 columns, and what it shows."""

    def isatty(self) -> bool:
        return True

    @property
    def lines(self) -> list[str]:
        screen = pyte.Screen(80, 12)
        pyte.Stream(screen).feed(self.getvalue().replace("\n", "\r\n"))
        return [line.rstrip() for line in screen.display if line.strip()]


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(live_line, "_INTERVAL", 0.0)
    return Terminal()


def test_a_bar_stays_at_the_bottom_while_lines_are_printed_above(terminal: Terminal) -> None:
    shared = Output(terminal, terminal)
    shared.write(shared.stdout, "Epoch 1/2")
    for step in range(1, 4):
        shared.show(0, f"{step}/3 bar")
        assert terminal.lines[-1] == f"{step}/3 bar"
        shared.say(f"message {step}")
        assert terminal.lines[-2:] == [f"kfit: message {step}", f"{step}/3 bar"]
    shared.show(0, "")
    shared.write(shared.stdout, "3/3 done")
    assert terminal.lines[-2:] == ["kfit: message 3", "3/3 done"]
    assert len(terminal.lines) == 5


def test_a_wide_bar_never_wraps(terminal: Terminal) -> None:
    shared = Output(terminal, terminal)
    for _ in range(3):
        shared.show(0, "\x1b[32m" + "wide " * 40)
    shared.say("message")
    assert terminal.lines[0] == "kfit: message"
    assert terminal.lines[1].startswith("wide wide")
    assert len(terminal.lines) == 2
    assert len(terminal.lines[1]) < 79
    shared.close()
    assert terminal.lines == ["kfit: message"]


def test_the_chiefs_line_is_shown_first(terminal: Terminal) -> None:
    shared = Output(terminal, terminal)
    shared.show(2, "worker 1 downloads")
    assert terminal.lines == ["worker 1 downloads"]
    shared.show(0, "the chief trains")
    shared.show(2, "worker 1 downloads more")
    assert terminal.lines == ["the chief trains"]
    shared.show(0, "")
    assert terminal.lines == ["worker 1 downloads more"]


def test_a_quiet_terminal_shows_the_status(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Output(terminal, terminal)
    shared.show(0, "1/3 bar")
    shared.status("worker 0 is tracing (1 s)")
    assert terminal.lines == ["1/3 bar"]
    monkeypatch.setattr(output, "_QUIET", 0.0)
    shared.status("worker 0 is tracing (2 s)")
    assert terminal.lines == ["worker 0 is tracing (2 s)"]
    shared.show(0, "2/3 bar")
    assert terminal.lines == ["2/3 bar"]
    shared.status("worker 0 is tracing (1 s)")
    shared.status("")
    assert terminal.lines == ["2/3 bar"]


def test_the_answer_to_ctrl_c_has_its_own_line(terminal: Terminal) -> None:
    for is_live, shown in ((True, []), (False, ["3/9^C"])):
        shared = Output(terminal, terminal, is_live=is_live)
        terminal.write("^C" if is_live else "3/9^C")
        shared.say("SIGINT: stopping the tasks", after_key=True)
        assert terminal.lines == [*shown, "kfit: SIGINT: stopping the tasks"]
        terminal.truncate(0)
        terminal.seek(0)


def test_where_there_is_no_terminal_nothing_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_QUIET", 0.0)
    stream = io.StringIO()
    shared = Output(stream, stream)
    shared.show(0, "1/3 bar")
    shared.status("worker 0 is tracing (2 s)")
    shared.say("message")
    shared.close()
    assert stream.getvalue() == "kfit: message\n"
    assert shared.columns == 0


def test_a_file_gets_no_control_sequences_while_a_terminal_shows_the_bar(
    terminal: Terminal,
) -> None:
    file = io.StringIO()
    shared = Output(terminal, file)
    shared.show(0, "1/3 bar")
    shared.say("message")
    assert file.getvalue() == "kfit: message\n"
    assert terminal.lines == ["1/3 bar"]


def test_a_notebook_gets_whole_lines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_QUIET", 0.0)
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    shared = Output(cell, cell)
    assert shared.columns
    assert not shared.has_live_line
    for second in range(1, 4):
        shared.status(f"worker 0 is starting ({second} s)")
    shared.write(cell, "message")
    shared.close()
    assert cell.getvalue() == "kfit: worker 0 is starting (1 s)\nmessage\n"


def test_a_file_gets_a_line_once_nothing_was_printed_for_some_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    out, err = io.StringIO(), io.StringIO()
    shared = Output(out, err)
    assert not shared.has_live_line
    for now[0] in range(0, 23, 3):
        shared.status(f"worker 0 is starting ({now[0]} s)")
        if now[0] == 15:
            shared.write(out, "message")
    assert (err.getvalue(), out.getvalue()) == ("kfit: worker 0 is starting (12 s)\n", "message\n")
    now[0] = 26
    shared.status("worker 0 is starting (26 s)")
    assert len(err.getvalue().splitlines()) == 2
    assert Output(out, err, is_live=False).status_after is None
