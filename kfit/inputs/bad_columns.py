"""Names the columns of a data frame that cannot become numbers of a tensor, and the way out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_NAMED = 3
"""Columns that a message names; of others it says how many there are."""


def is_frame(value: Any) -> bool:
    """Returns whether a value is a data frame or a series of pandas or polars."""
    kind = type(value)
    frames = ("DataFrame", "Series")
    return kind.__module__.split(".")[0] in ("pandas", "polars") and kind.__name__ in frames


def bad_columns(frame: Any, dtype_of: Callable[[Any], Any]) -> str:
    """Returns a sentence on the columns for which a frame can't be converted, and one on the mend.

    Args:
        frame: A data frame or a series of pandas or polars, whose conversion has failed.
        dtype_of: Converts a frame, and returns the dtype of its tensor. It raises an error for a
            bad column. Strings can be converted alone, but not beside numbers: they are named if
            no column is bad.
    """
    one_by_one = _columns(frame)
    bad, texts = [], []
    for each in one_by_one:
        try:
            if dtype_of(each[2]) == "string":
                texts.append(each)
        except (TypeError, ValueError):
            bad.append(each)
    found = bad or texts or one_by_one
    what = f"Received: a {type(frame).__module__.split('.')[0]}.{type(frame).__name__}"
    if len(frame.shape) == 1:
        return f"{what} of dtype {frame.dtype}; {_mend(frame, found)}"
    named = [f"{name} of dtype {dtype}" for name, dtype, _ in found]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    are = "columns" if len(found) > 1 else "column"
    return f"{what}, with the {are} {', '.join(named)}; {_mend(frame, found)}"


def _columns(frame: Any) -> list[tuple[str, Any, Any]]:
    """Returns each column of a frame: its name and dtype for messages, and a frame of it alone."""
    if len(frame.shape) == 1:
        return [(repr(frame.name), frame.dtype, frame)]
    rows = frame.iloc if hasattr(frame, "iloc") else frame
    return [
        (repr(name), dtype, rows[:, [index]])
        for index, (name, dtype) in enumerate(zip(frame.columns, frame.dtypes, strict=True))
    ]


def _mend(frame: Any, found: list[tuple[str, Any, Any]]) -> str:
    """Returns in words how the columns that were found become numbers, if they can at all."""
    is_pandas = hasattr(frame, "iloc")
    dtype = "float32" if is_pandas else sys.modules["polars"].Float32
    it = "them" if len(found) > 1 else "it"
    try:
        for _, _, column in found:
            column.astype(dtype) if is_pandas else column.cast(dtype)
    except Exception:
        return f"compute numbers from {it}, or leave {it} out"
    shown = "'float32'" if is_pandas else "pl.Float32"
    if len(frame.shape) > 1:
        names = [name for name, _, _ in found[:_NAMED]]
        shown = "{" + ", ".join(f"{name}: {shown}" for name in names)
        shown += ", ...}" if len(found) > _NAMED else "}"
    return f"make {it} numbers: `.{'astype' if is_pandas else 'cast'}({shown})`"
