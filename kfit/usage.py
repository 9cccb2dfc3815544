"""What is wrong with a command line, and numbers in one."""

from __future__ import annotations

import math


class CommandError(Exception):
    """The command cannot be run as it was given."""


def seconds(option: str, text: str | None, *, above_zero: bool = False) -> float | None:
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
