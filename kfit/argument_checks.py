"""Checks of numbers that a user gives, as arguments of a function or of a command."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any


class CommandError(Exception):
    """The command cannot be run as it was given."""


def check_seconds(name: str, value: Any, *, above_zero: bool = False, others: str = "") -> None:
    """Refuses what is no number of seconds from 0 up, or above 0; NaN and infinity are none.

    Args:
        name: The argument.
        value: What it got.
        above_zero: Whether 0 is refused as well.
        others: What else the argument may be, for the message.

    Raises:
        ValueError: If it is none; the message names the argument.
    """
    if not _is_number(value) or value < 0 or (above_zero and value == 0):
        least = "above 0" if above_zero else "from 0 up"
        raise ValueError(f"`{name}` is {value!r}; expected a number of seconds {least}{others}")


def check_positive(**arguments: Any) -> None:
    """Refuses what is no integer of at least 1; None is left out.

    Raises:
        ValueError: If one is not.
    """
    for name, value in arguments.items():
        if value is not None and not (is_integer(value) and value >= 1):
            raise ValueError(f"`{name}` must be an integer of at least 1. Received: {value!r}")


def read_seconds(option: str, text: str | None, *, above_zero: bool = False) -> float | None:
    """Reads a number of seconds, from 0 up or above 0; None where the option is not given.

    Raises:
        CommandError: If it is none.
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


def is_integer(value: Any) -> bool:
    """Whether it is an integer, of Python or NumPy; True, False and 4.0 are none."""
    return not isinstance(value, bool) and isinstance(value, Integral)


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, Real) and math.isfinite(value)
