"""Checks of numbers and paths that a user gives as arguments or as options of a command."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")  # of an object in memory, which tells a user nothing

_LONGEST = 100
_MOST_PARTS = 6
"""The most characters, and the most arrays, of a wrong value that an error message shows."""


class CommandError(Exception):
    """An error for a wrong option or argument of a `kfit` command.

    The command prints the message, which describes the option and the value, and ends with code 2.
    """


def check_seconds(name: str, value: Any, *, above_zero: bool = False, others: str = "") -> None:
    """Checks that an argument is a number of seconds: finite, and at least 0 or above 0.

    Args:
        name: The name of the argument, for the error message.
        value: The value to check.
        above_zero: Whether the value must be above 0; otherwise 0 is allowed.
        others: The end of the error message, about other values that the argument may have, such
            as ", or None". The caller must accept these values itself: here they raise the error.

    Raises:
        ValueError: If the value is wrong.
    """
    if not _is_number(value) or value < 0 or (above_zero and value == 0):
        least = "above 0" if above_zero else "from 0 up"
        raise ValueError(
            f"`{name}` is {shown(value)}; expected a number of seconds {least}{others}"
        )


def check_directory(name: str, path: str | os.PathLike[str]) -> str:
    """Checks an argument that is a directory of kfit's own, and returns its path.

    Raises:
        ValueError: If it is empty, or no path of a file system (see `check_no_url`).
    """
    if not os.fspath(path):
        raise ValueError(f"`{name}` must be the path of a directory. Received: ''")
    check_no_url(name, path)
    return os.fspath(path)


def check_no_url(name: str, path: str | os.PathLike[str]) -> None:
    """Checks that a path is one of a file system, and no URL such as "gs://bucket/model.keras".

    kfit replaces files by renaming, syncs and locks them. A URL would become a local folder "gs:".

    Args:
        name: The name of the argument, for the error message.
        path: The path.

    Raises:
        ValueError: If it is a URL.
    """
    if is_url(path):
        raise ValueError(
            f"`{name}` must be a path of a file system, whose files kfit can rename and lock. "
            f"Received: {os.fspath(path)!r}. Give a folder of a mounted disk, such as one by "
            "gcsfuse or a persistent volume."
        )


def is_url(path: str | os.PathLike[str]) -> bool:
    """Returns whether a path is a URL, such as "gs://bucket/model.keras"."""
    return _URL.match(os.fspath(path)) is not None


def check_positive(**arguments: Any) -> None:
    """Checks that each argument is an integer of at least 1, or None.

    Args:
        **arguments: The values to check, by the names of the arguments.

    Raises:
        ValueError: If a value is wrong; the message names the argument.
    """
    for name, value in arguments.items():
        if value is not None and not (is_integer(value) and value >= 1):
            raise ValueError(f"`{name}` must be an integer of at least 1. Received: {shown(value)}")


def checked_save_freq(save_freq: Any, *words: str, others: Sequence[str] = ()) -> Any:
    """Checks the argument `save_freq` of a callback, which says how often the callback saves.

    Args:
        save_freq: The value: a number of steps, or one of `words`.
        *words: The strings that are allowed, such as "epoch".
        others: Descriptions of other values that the callback accepts, for the error message. The
            caller must accept these values itself: here they raise the error.

    Returns:
        `save_freq`; a NumPy integer is converted to an `int`.

    Raises:
        ValueError: If `save_freq` is neither a number of steps from 1 up nor one of `words`.
    """
    if isinstance(save_freq, str) and save_freq in words:
        return save_freq
    if is_integer(save_freq) and save_freq >= 1:
        return int(save_freq)
    allowed = [*(f'"{word}"' for word in words), "a number of steps of at least 1", *others]
    raise ValueError(
        f"`save_freq` must be {', '.join(allowed[:-1])} or {allowed[-1]}. "
        f"Received: {shown(save_freq)}"
    )


def read_seconds(option: str, text: str | None, *, above_zero: bool = False) -> float | None:
    """Converts the text of a command line option to a number of seconds, and checks the number.

    Args:
        option: The name of the option, for the error message.
        text: The text that the user gave, or None if the option was not given.
        above_zero: Whether the number must be above 0; otherwise 0 is allowed.

    Returns:
        The number; None if the option was not given.

    Raises:
        CommandError: If the text is not such a number.
    """
    if text is None:
        return None
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (number >= 0 and math.isfinite(number)) or (above_zero and number == 0):
        least = "above 0" if above_zero else "from 0 up"
        raise CommandError(f"`{option}` is {text!r}; expected a number of seconds {least}")
    return number


def shown(value: Any) -> str:
    """Returns a wrong value for an error message: arrays by their shapes, others cut short.

    An object that only Python describes is shown by its class, without its address in memory.
    """
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple) and shape:
        return f"an array of shape {shape}"
    if isinstance(value, (tuple, list)) and any(hasattr(part, "shape") for part in value):
        kind, parts = type(value).__name__, ", ".join(map(shown, value[:_MOST_PARTS]))
        more = ", ..." if len(value) > _MOST_PARTS else ""
        return f"a {kind} of {len(value)} part{'s' * (len(value) != 1)}: {parts}{more}"
    text = _ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check_parts(what: str, data: Any) -> None:
    """Checks that a tuple or list of data has the parts that it may have.

    Args:
        what: What the data is, for the error message.
        data: The data, or the structure of a batch.

    Raises:
        ValueError: If there are no parts, or more than three.
    """
    if isinstance(data, (tuple, list)) and not 1 <= len(data) <= 3:
        raise ValueError(
            f"{what} must be `x`, `(x, y)` or `(x, y, sample_weight)`. Received: {shown(data)}"
        )


def is_integer(value: Any) -> bool:
    """Returns whether a value is an integer of Python or NumPy; a bool, or 4.0, is not."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
