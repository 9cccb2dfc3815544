import os
import threading
import time

import pytest

from kfit.supervisor import line_assembler
from kfit.supervisor.line_assembler import Line, LineAssembler, pump


def assemble(*chunks: bytes) -> list[str]:
    assembler = LineAssembler()
    lines = [line for chunk in chunks for line in assembler.feed(chunk)] + assembler.flush()
    return [line.text for line in lines]


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\nt", b"wo"], ["one", "two"]),
        ([b"one\r\ntwo\r\n"], ["one", "two"]),
        ([b"one\r", b"\ntwo"], ["one", "two"]),
        ([b"\n\n"], ["", ""]),
        (["grün".encode()[:3], "grün".encode()[3:] + b"\n"], ["grün"]),
        ([b"\xff\n"], ["\ufffd"]),
        # tqdm: a carriage return before each state.
        ([b"\r 10%", b"\r 50%", b"\r100%", b"\n"], ["100%"]),
        # Keras: backspaces and a carriage return after each state.
        ([b"1/2 [=>.]", b"\b" * 9 + b"\r2/2 [==>]", b"\n"], ["2/2 [==>]"]),
        # A spinner.
        ([b"wait |\b/\b-\bdone\n"], ["wait done"]),
        ([b"\b\bok\n"], ["ok"]),
        # Colors stay, and end with the line; the cursor does not move.
        ([b"\x1b[32mok\x1b[0m \x1b[2Aup\n"], ["\x1b[32mok\x1b[0m up"]),
        ([b"\x1b[31mred\n"], ["\x1b[31mred\x1b[0m"]),
        ([b"gone\x1b[2Kleft\n"], ["left"]),
        # A bar that clears its line when it is done.
        ([b"\r100%\r    \r"], []),
    ],
)
def test_lines_as_a_terminal_would_leave_them(chunks: list[bytes], lines: list[str]) -> None:
    assert [line.strip(" ") for line in assemble(*chunks)] == lines


def test_a_bar_without_end_takes_no_memory() -> None:
    assembler = LineAssembler()
    for step in range(10_000):
        assert assembler.feed(b"\r%d of 10000" % step) == []
    assert len(assembler._open) < 100
    assert assembler.flush() == [Line("9999 of 10000", is_rewritten=True)]


def test_an_endless_line_is_cut() -> None:
    assembler = LineAssembler()
    cut = [line.text for _ in range(40) for line in assembler.feed(b"x" * 10_000)]
    assert len("".join(cut) + assembler.flush()[0].text) == 400_000
    assert len(cut) >= 4


def test_the_open_line_and_whether_it_was_rewritten() -> None:
    assembler = LineAssembler()
    assert assembler.feed(b"loading") == []
    assert assembler.open_line == Line("loading")
    assembler.feed(b"\r1/2")
    assert assembler.open_line == Line("1/2", is_rewritten=True)
    assert assembler.feed(b"\nnext") == [Line("1/2", is_rewritten=True)]
    assert assembler.open_line == Line("next")


def test_a_line_that_does_not_end_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_assembler, "_PEEK_INTERVAL", 0.05)
    reader, writer = os.pipe()
    lines: list[str] = []
    shown = threading.Event()

    def emit(line: Line) -> None:
        lines.append(line.text)
        shown.set()

    thread = threading.Thread(target=pump, args=(os.fdopen(reader, "rb"), emit))
    thread.start()
    os.write(writer, b"\r 50%")
    assert shown.wait(10)
    os.write(writer, b"\r100%\n")
    os.close(writer)
    thread.join(10)
    assert lines == [" 50%", "100%"]


def test_a_line_written_in_pieces_after_a_long_silence_stays_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Python's unbuffered `print(3, 4)` writes three times.
    monkeypatch.setattr(line_assembler, "_PEEK_INTERVAL", 0.5)
    reader, writer = os.pipe()
    lines: list[str] = []
    thread = threading.Thread(
        target=pump, args=(os.fdopen(reader, "rb"), lambda line: lines.append(line.text))
    )
    thread.start()
    time.sleep(0.7)
    for piece in (b"3", b" ", b"4\n"):
        os.write(writer, piece)
        time.sleep(0.02)
    os.close(writer)
    thread.join(10)
    assert lines == ["3 4"]


def test_where_lines_can_be_rewritten_each_state_is_shown_and_the_last_one_passed_on() -> None:
    reader, writer = os.pipe()
    events: list[tuple[str, str]] = []
    changed = threading.Condition()

    def note(kind: str, line: Line) -> None:
        with changed:
            events.append((kind, line.text))
            changed.notify()

    pipe = os.fdopen(reader, "rb")
    arguments = (pipe, lambda line: note("emit", line), lambda line: note("show", line))
    thread = threading.Thread(target=pump, args=arguments)
    thread.start()
    for state in (b"\r 50%", b"\r100%"):
        os.write(writer, state)
        with changed:
            assert changed.wait_for(lambda s=state: ("show", s[1:].decode()) in events, 10)
    os.write(writer, b"\nnext")
    os.close(writer)
    thread.join(10)
    assert events[:4] == [("show", " 50%"), ("show", "100%"), ("show", ""), ("emit", "100%")]
    assert events[4:] in (
        [("show", "next"), ("show", ""), ("emit", "next")],
        [("emit", "next")],
    )


def test_a_line_that_follows_an_erased_bar_is_no_bar() -> None:
    assembler = LineAssembler()
    assembler.feed(b"\r1/2")
    assert assembler.feed(b"\r\x1b[2") == []
    assert assembler.feed(b"Kmessage\n\r2/2") == [Line("message")]
    assert assembler.open_line == Line("2/2", is_rewritten=True)
