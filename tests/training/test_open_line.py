import io
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from kfit.heartbeat.terminal import WIDTH_VARIABLE
from kfit.training.open_line import OpenLine

ERASE = "\r\x1b[2K"


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Returns what is written while a bar is drawn, others print, and it is drawn again."""

    def show(print_others: Callable[[], Any], stream: io.StringIO, columns: str = "80") -> str:
        if columns:
            monkeypatch.setenv(WIDTH_VARIABLE, columns)
        else:
            monkeypatch.delenv(WIDTH_VARIABLE, raising=False)
        monkeypatch.setattr(sys, "stdout", stream)
        line = OpenLine()
        with line.leaving_for_others():
            for number in range(2):
                if number:
                    print_others()
                with line.drawing():
                    sys.stdout.write(f"\rbar{number}")
                    line.width = 4
        print(" end")
        assert "write" not in vars(stream)
        return stream.getvalue()

    return show


def test_the_bar_is_erased_for_another_line(shown: Any) -> None:
    printed = shown(lambda: print("a", "line"), io.StringIO())
    assert printed == f"\rbar0{ERASE}a line\n\rbar1 end\n"


@pytest.mark.parametrize("text", ["\nEpoch 1: saved", "Epoch 1: saved"])
def test_a_line_end_that_only_leaves_the_bar_is_left_out(shown: Any, text: str) -> None:
    printed = shown(lambda: print(text), io.StringIO())
    assert printed == f"\rbar0{ERASE}Epoch 1: saved\n\rbar1 end\n"


def test_the_bar_does_not_overwrite_what_has_no_line_end(shown: Any) -> None:
    printed = shown(lambda: print("half", end=""), io.StringIO())
    assert printed == f"\rbar0{ERASE}half\n\rbar1 end\n"


def test_without_a_terminal_the_line_ends(shown: Any) -> None:
    assert shown(lambda: print("line"), io.StringIO(), "0") == "\rbar0\nline\n\rbar1 end\n"


def test_a_notebook_gets_spaces(shown: Any) -> None:
    cell = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    assert shown(lambda: print("line"), cell, "") == "\rbar0\r    \rline\n\rbar1 end\n"


def test_a_line_of_another_thread(shown: Any) -> None:
    def others() -> None:
        thread = threading.Thread(target=print, args=("line",))
        thread.start()
        thread.join()

    assert shown(others, io.StringIO()) == f"\rbar0{ERASE}line\n\rbar1 end\n"


def test_stderr_of_a_terminal(shown: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", terminal)
    printed = shown(lambda: sys.stderr.write("warning\n"), terminal, "")
    assert printed == f"\rbar0{ERASE}warning\n\rbar1 end\n"


def test_a_child_process_prints_without_the_lock(
    shown: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = os.getpid()

    def others() -> None:
        monkeypatch.setattr(os, "getpid", lambda: parent + 1)
        print("child")

    assert shown(others, io.StringIO()) == "\rbar0child\n\rbar1 end\n"
