"""What a terminal shows: how wide it is, and what is left of a line that was rewritten.

The output of a task of `kfit run` goes through a pipe, so the task cannot ask the terminal that
shows its output in the end. The supervisor tells it the width in the variable `WIDTH_VARIABLE`.
"""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

WIDTH_VARIABLE = "KFIT_TERMINAL_WIDTH"
"""The environment variable with the number of columns that a task's lines may have; 0 if no
terminal shows them."""

RESET = "\x1b[0m"
"""The control sequence that ends all colors."""

# The width of a notebook's output is not known; a page of a notebook has about 100 columns.
_NOTEBOOK_COLUMNS = 100
_USUAL_COLUMNS = 80

_TOKEN = re.compile(
    r"(?P<color>\x1b\[[0-9;:]*m)"
    r"|(?P<erase>\x1b\[[12]K)"
    r"|(?P<other>\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]*[0-~]?)"
    r"|(?P<character>.)",
    re.DOTALL,
)
_REST_OF_KERAS_BAR = re.compile("\x1b\\[37m(━*)\x1b\\[0m")
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")


def in_notebook(stream: Any) -> bool:
    """Returns whether a stream is the output of a notebook's cell."""
    return type(stream).__module__.partition(".")[0] == "ipykernel"


def is_terminal(stream: Any) -> bool:
    """Returns whether a stream is a terminal in which a line can be rewritten.

    A command in a notebook's cell, such as `!kfit run train.py`, has a terminal that nobody sees:
    the notebook cannot erase what a longer line has left. Jupyter sets `JPY_PARENT_PID`.
    """
    if os.environ.get("TERM") == "dumb" or "JPY_PARENT_PID" in os.environ:
        return False
    try:
        return bool(stream.isatty())
    except (AttributeError, OSError, ValueError):  # no file, or a closed one
        return False


def columns_of(stream: Any) -> int:
    """Returns how many columns a line may have in the terminal or notebook of a stream.

    Returns:
        The number of columns at this moment, without the last one of a terminal. It is 0 if the
        stream is neither a terminal nor the output of a notebook's cell.
    """
    if in_notebook(stream):
        return _NOTEBOOK_COLUMNS
    if not is_terminal(stream):
        return 0
    try:
        columns = os.get_terminal_size(stream.fileno()).columns or _USUAL_COLUMNS
    except (AttributeError, OSError, ValueError):
        columns = _USUAL_COLUMNS
    # In the last column, some terminals already begin the next line.
    return max(1, columns - 1)


def columns_of_output(environ: Mapping[str, str] = os.environ) -> int:
    """Returns how many columns a line of this process's stdout may have.

    Args:
        environ: The environment variables. Under a supervisor such as `kfit run`, `WIDTH_VARIABLE`
            has the width of the terminal that shows the output of this process.

    Returns:
        The number of columns; 0 if no terminal and no notebook shows the output.
    """
    told = environ.get(WIDTH_VARIABLE, "")
    return int(told) if told.isdecimal() else columns_of(sys.stdout)


def wrapped(text: str, stream: Any) -> str:
    """Returns a message for a stream; if it is a terminal, with lines that end between two words.

    Elsewhere the text is not changed, so that programs find whole lines.
    """
    columns = columns_of(stream) if is_terminal(stream) else 0
    if not columns:
        return text
    import textwrap  # only here, so that `import kfit` is faster

    return "\n".join(
        textwrap.fill(
            line,
            columns,
            subsequent_indent=" " * (len(line) - len(line.lstrip()) + 2),
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    )


def has_colors(environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether colors are wanted: `NO_COLOR` is not set (see https://no-color.org)."""
    return not environ.get("NO_COLOR")


def visible(line: bytes) -> str:
    """Returns a line as a terminal shows it in the end, after it was rewritten.

    A carriage return starts the line anew, and a backspace deletes a character. Colors are kept,
    and other control sequences, such as movements of the cursor, are dropped.

    Args:
        line: The bytes of the line, without its end.
    """
    line = line.rstrip(b"\r")
    text = line[line.rfind(b"\r") + 1 :].decode(errors="replace")
    if "\b" not in text and "\x1b" not in text:
        return text
    shown: list[str] = []
    for kind, token in _tokens(text):
        if kind == "erase":
            shown.clear()
        elif token == "\b":
            last = next((i for i in reversed(range(len(shown))) if shown[i][0] != "\x1b"), None)
            if last is not None:
                del shown[last]
        elif kind != "other":
            shown.append(token)
    return _with_end_of_colors("".join(shown))


def width_of(text: str) -> int:
    """Returns how many columns a text takes in a terminal; colors take none."""
    return sum(_columns(token) for kind, token in _tokens(text) if kind == "character")


def cut(text: str, columns: int) -> str:
    """Returns the beginning of a line that fits into a number of columns, with its colors."""
    shown, width = [], 0
    for kind, token in _tokens(text.replace("\t", " ")):
        if kind == "character":
            width += _columns(token)
            if width > columns:
                break
        if kind == "color" or (kind == "character" and token.isprintable()):
            shown.append(token)
    return _with_end_of_colors("".join(shown))


def without_colors(text: str) -> str:
    """Returns a line without colors, in which a progress bar of Keras still shows how far it is.

    Keras draws the part that is left with the same character as the done part, in another color.
    """
    thin = _REST_OF_KERAS_BAR.sub(lambda rest: "─" * len(rest[1]), text)
    return _COLOR.sub("", thin)


def _with_end_of_colors(text: str) -> str:
    colors = _COLOR.findall(text)
    return text + RESET if colors and colors[-1] not in (RESET, "\x1b[m") else text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(text):
        yield str(found.lastgroup), found[0]


def _columns(character: str) -> int:
    if unicodedata.combining(character) or not character.isprintable():
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
