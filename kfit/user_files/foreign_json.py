"""Parses JSON that a stranger, or a crash, may have changed, and makes JSON that all can parse."""

from __future__ import annotations

import json
import math
import os
import stat
from typing import Any

DEEPEST = 210
"""How many lists and objects may contain each other, few enough for Python's own limit."""


_LARGEST = 1 << 26
"""The most bytes of a file that `read_json` reads."""


def read_json(path: str) -> Any:
    """Reads a JSON file that is at most 64 MiB large.

    Args:
        path: The path of the file. A pipe or a device in its place does not hold up the process.

    Raises:
        FileNotFoundError: If there is no file.
        ValueError: If it is no regular file, is larger, or has no valid JSON.
        OSError: If it cannot be read.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise ValueError("it is no regular file")
        if found.st_size > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST} bytes")
        with open(descriptor, "rb", closefd=False) as file:
            return parse_json(file.read(_LARGEST))
    finally:
        os.close(descriptor)


def parse_json(content: str | bytes) -> Any:
    """Parses JSON, so that only one kind of error can occur.

    Deeply nested JSON ends Python's parser, and whatever walks through its result, with a
    RecursionError. It is refused here.

    Args:
        content: The JSON.

    Raises:
        ValueError: If the content is not valid JSON, or is nested more deeply than `DEEPEST`.
    """
    try:
        value = json.loads(content)
    except RecursionError:
        raise _too_deep() from None
    level = [value]
    for _ in range(DEEPEST):
        level = [part for each in level for part in _parts(each)]
        if not level:
            return value
    raise _too_deep()


def without_nan(value: Any) -> Any:
    """Returns a value with None in place of NaN and infinity, which JSON cannot encode."""
    if isinstance(value, dict):
        return {name: without_nan(part) for name, part in value.items()}
    if isinstance(value, list):
        return [without_nan(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parts(value: Any) -> Any:
    """Returns the values that a list or an object contains; empty for any other value."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEEPEST} levels deep")
