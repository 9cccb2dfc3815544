import io
import os
import threading
import time

import pytest

from kfit.supervisor import output
from kfit.supervisor.output import LineAssembler, Output, pump


def assemble(*chunks: bytes) -> list[str]:
    assembler = LineAssembler()
    return [line for chunk in chunks for line in assembler.feed(chunk)] + assembler.flush()


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
    assert assembler.flush() == ["9999 of 10000"]


def test_an_endless_line_is_cut() -> None:
    assembler = LineAssembler()
    cut = [line for _ in range(40) for line in assembler.feed(b"x" * 10_000)]
    assert len("".join(cut) + "".join(assembler.flush())) == 400_000
    assert len(cut) >= 4


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


def test_a_line_that_does_not_end_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_PEEK_INTERVAL", 0.05)
    reader, writer = os.pipe()
    lines: list[str] = []
    shown = threading.Event()

    def emit(line: str) -> None:
        lines.append(line)
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
    monkeypatch.setattr(output, "_PEEK_INTERVAL", 0.5)
    reader, writer = os.pipe()
    lines: list[str] = []
    thread = threading.Thread(target=pump, args=(os.fdopen(reader, "rb"), lines.append))
    thread.start()
    time.sleep(0.7)
    for piece in (b"3", b" ", b"4\n"):
        os.write(writer, piece)
        time.sleep(0.02)
    os.close(writer)
    thread.join(10)
    assert lines == ["3 4"]


def test_a_reader_that_has_gone_stops_nobody() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    stream = os.fdopen(writer, "w")
    Output(stream, stream).write(stream, "nobody reads this")
    with pytest.raises(BrokenPipeError):
        stream.close()
