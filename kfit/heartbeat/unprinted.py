"""The traceback that a task does not print, recorded for its supervisor to log.

Under a supervisor (`kfit run`) some tracebacks tell the user nothing: that of an error which only
another task's failure has caused, that of an interrupt which the supervisor has passed on, and one
that another task has printed already. The supervisor logs them (`--log-dir`) when the task ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import traceback as python_traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import TracebackType

from kfit.heartbeat.errors import (
    NOT_THE_SAME,
    is_surely_consequence,
    reason_of,
    told_as_consequence,
)
from kfit.heartbeat.summaries import message_of, summary_of


@dataclass(frozen=True)
class Unprinted:
    """A traceback that a task has not printed.

    Attributes:
        text: The traceback with its error.
        is_interrupt: Whether the error comes from an interrupt (SIGINT). The supervisor
            prints it if it has not passed on a signal itself.
    """

    text: str
    is_interrupt: bool


def in_short(
    heartbeat: str,
    error: BaseException,
    traceback: TracebackType | None,
    environ: Mapping[str, str] = os.environ,
) -> str | None:
    """Returns what a task prints in place of the traceback of the error that ends it.

    The traceback is recorded then.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
        error: The error.
        traceback: The part of its traceback that is for the user.
        environ: The environment variables, which say whether everything is printed (`--verbose`).

    Returns:
        A line; empty if nothing is to be printed. None if the traceback is to be printed.
    """
    if environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        return None
    text = "".join(python_traceback.format_exception(type(error), error, traceback)).rstrip()
    if is_interrupted := is_interrupt(error):
        short = ""
    elif is_surely_consequence(error):
        reason = reason_of(error)
        is_own = NOT_THE_SAME in reason
        short = f"kfit: failed{_at(traceback)}: {reason}" if is_own else told_as_consequence(error)
    else:
        summary = summary_of(error)
        first = _summary_of_first(heartbeat, _place(error, traceback), summary)
        if first is None:
            return None
        short = "" if first == summary else f"kfit: failed at the same place: {summary}"
    unprinted = Unprinted(text, is_interrupted)
    return short if _write(heartbeat, unprinted) else None


def unprinted_path(heartbeat: str) -> str:
    """Returns the path of the file for the traceback.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
    """
    return f"{heartbeat}.unprinted"


def raised_path(heartbeat: str) -> str:
    """Returns the path of the file for the summary of the error, which the other tasks may read.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
    """
    return f"{heartbeat}.raised"


def read_unprinted(heartbeat: str) -> Unprinted | None:
    """Returns the traceback that a task has not printed; None if there is none."""
    try:
        with open(unprinted_path(heartbeat), encoding="utf-8") as file:
            return Unprinted(**json.load(file))
    except (OSError, ValueError, TypeError):  # there is no file, or it is malformed
        return None


def is_interrupt(error: BaseException) -> bool:
    """Returns whether an error comes from an interrupt (SIGINT), such as Ctrl-C."""
    # If Ctrl-C comes while TensorFlow's C++ runs, pybind11 may raise an error of its own.
    text = message_of(error)
    is_replaced = "pybind11::error_already_set" in text and "KeyboardInterrupt" in text
    return isinstance(error, KeyboardInterrupt) or is_replaced


def _write(heartbeat: str, unprinted: Unprinted) -> bool:
    """Records a traceback, and returns whether that was possible."""
    try:
        with open(unprinted_path(heartbeat), "w", encoding="utf-8", errors="replace") as file:
            json.dump(asdict(unprinted), file)
    except OSError:
        return False
    return True


def _at(traceback: TracebackType | None) -> str:
    """Returns the innermost line of a traceback as a text, such as " at train.py:7, in run"."""
    frames = python_traceback.extract_tb(traceback)
    if not frames:
        return ""
    return f" at {os.path.basename(frames[-1].filename)}:{frames[-1].lineno}, in {frames[-1].name}"


def _place(error: BaseException, traceback: TracebackType | None) -> str:
    """Returns a digest of the class of an error and of the lines at which it was raised."""
    frames = [
        (each.filename, each.lineno, each.name) for each in python_traceback.extract_tb(traceback)
    ]
    text = repr((type(error).__module__, type(error).__qualname__, frames))
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:16]


def _summary_of_first(heartbeat: str, place: str, summary: str) -> str | None:
    """Returns the summary of the error that another task of this attempt raised at a place before.

    Args:
        heartbeat: The path of the task's heartbeat, whose name begins with that of the attempt.
        place: A digest of the place.
        summary: The summary of the error that this task has raised there.

    Returns:
        The summary; None if this task is the first one.
    """
    folder, name = os.path.split(heartbeat)
    shared = os.path.join(folder, f"{name.partition('-')[0]}-raised-{place}")
    own = raised_path(heartbeat)
    try:
        with open(own, "w", encoding="utf-8", errors="replace") as file:
            file.write(summary)
        try:
            # A link appears at once with its content, and only one task can make it.
            os.link(own, shared)
        except FileExistsError:
            with open(shared, encoding="utf-8") as file:
                return file.read()
    except (OSError, ValueError):
        pass
    return None
