import fcntl
import io
import os
import pty
import struct
import termios
from typing import Any

import pytest

from kfit.heartbeat.terminal import (
    WIDTH_VARIABLE,
    columns_of,
    columns_of_output,
    cut,
    has_colors,
    is_terminal,
    visible,
    width_of,
    without_colors,
    wrapped,
)

GREEN, RESET = "\x1b[32m", "\x1b[0m"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain", "plain"),
        (b"one\rtwo\r", "two"),
        (b"ab\b\bc", "c"),
        (b"\x1b[32mgreen", f"{GREEN}green{RESET}"),
        (b"\x1b[32ma\b\bb\x1b[0m", f"{GREEN}b{RESET}"),
        (b"\x1b[3A\x1b[?25lx\x1b]8;;http://a\x07link\x1b]8;;\x07", "xlink"),
        (b"old\x1b[2Knew", "new"),
        (b"end\x1b", "end"),
    ],
)
def test_a_line_as_a_terminal_shows_it(line: bytes, shown: str) -> None:
    assert visible(line) == shown


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("short", 10, "short"),
        ("exact", 5, "exact"),
        ("longer", 5, "longe"),
        (f"{GREEN}green{RESET} rest", 7, f"{GREEN}green{RESET} r"),
        (f"{GREEN}green{RESET}", 3, f"{GREEN}gre{RESET}"),
        ("日本", 3, "日"),
        ("e\u0301a", 1, "e\u0301"),
        ("a\tb\x07", 9, "a b"),
        ("anything", 0, ""),
    ],
)
def test_a_line_is_cut_by_what_is_seen_of_it(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown
    assert width_of(cut(text, columns)) <= columns


def test_a_bar_of_keras_without_colors_still_shows_how_far_it_is() -> None:
    bar = f"\x1b[1m5/10{RESET} {GREEN}━━━━{RESET}\x1b[37m━━━━{RESET} 3s"
    assert without_colors(bar) == "5/10 ━━━━──── 3s"


def test_a_file_has_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert columns_of(io.StringIO()) == 0
    assert columns_of(None) == 0
    monkeypatch.setattr("sys.stdout", io.StringIO())
    assert columns_of_output({}) == 0


def test_a_terminal_has_all_columns_but_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as stream:
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        assert columns_of(stream) == 99
        monkeypatch.setenv("TERM", "dumb")
        assert columns_of(stream) == 0
    assert columns_of(stream) == 0  # it is closed
    os.close(master)


def test_the_terminal_of_a_notebooks_command_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = pty.openpty()
    try:
        with open(terminal, "w") as stream:
            assert is_terminal(stream)
            monkeypatch.setenv("JPY_PARENT_PID", "1")
            assert not is_terminal(stream)
            assert columns_of(stream) == 0
    finally:
        os.close(main)


def test_a_supervisor_knows_better_than_a_pipe() -> None:
    assert columns_of_output({WIDTH_VARIABLE: "70"}) == 70
    assert columns_of_output({WIDTH_VARIABLE: "0"}) == 0


def test_no_color() -> None:
    assert has_colors({})
    assert has_colors({"NO_COLOR": ""})
    assert not has_colors({"NO_COLOR": "1"})


def test_messages_are_wrapped_between_words_on_a_terminal_only(monkeypatch: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("kfit.heartbeat.terminal.columns_of", lambda stream: 20)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("JPY_PARENT_PID", raising=False)
    text = "kfit: error: no such-option `--max-restarts`\n  worker 1 at host-1.example.org:2222"
    assert wrapped(text, Terminal()).splitlines() == [
        "kfit: error: no",
        "  such-option",
        "  `--max-restarts`",
        "  worker 1 at",
        "    host-1.example.org:2222",
    ]
    assert wrapped(text, io.StringIO()) == text
