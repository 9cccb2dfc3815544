"""Parses JSON that a stranger, or a crash, may have changed."""

from __future__ import annotations

import json
from typing import Any

DEEPEST = 210
"""How many lists and objects may contain each other, few enough for Python's own limit."""


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


def _parts(value: Any) -> Any:
    """Returns the values that a list or an object contains; empty for any other value."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEEPEST} levels deep")
