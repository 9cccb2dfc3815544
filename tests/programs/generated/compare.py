"""What two runs of one program differ in."""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

TOLERANCES = {"float64": 1e-9, "float32": 2e-4, "mixed_bfloat16": 0.2, "mixed_float16": 0.05}
"""An optimizer that divides by the gradient's size enlarges what is rounded in one that is all but
zero: that of an offset before a BatchNormalization comes to 4e-10 after a few steps of Nadam."""
LAST_DIGITS = {"float64": 1e-15, "float32": 1e-7, "mixed_bfloat16": 8e-3, "mixed_float16": 1e-3}
"""What is rounded, relative to a number, by the dtype that layers compute in."""


def differences(
    reference: list[Any], other: list[Any], tolerance: float, losses_of_outputs: bool = True
) -> list[str]:
    """Every difference between two lists of records or hooks, in words.

    Args:
        reference: What one run recorded.
        other: What the other one recorded.
        tolerance: The largest difference of two numbers, relative to those above 1.
        losses_of_outputs: Whether to compare the losses of single outputs, and logs in files.
    """
    found = []
    for index, (one, two) in enumerate(zip(reference, other, strict=False)):
        place = one[0] if isinstance(one, tuple) else f"hook {index}"
        if not losses_of_outputs and place.endswith(" log"):
            continue
        for text in _apart(one, two, "", tolerance):
            if losses_of_outputs or not re.search(r"(?<!^)(?<!'val)_loss'\]", text):
                found.append(f"{place}{text}")
    if len(reference) != len(other):
        found.append(f"number of records: {len(reference)} and {len(other)}")
    return found


def _apart(one: Any, two: Any, where: str, tolerance: float) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(two, dict):
        if sorted(one) != sorted(two):
            yield f"{where}: {sorted(one)} and {sorted(two)}"
            return
        for key in one:
            yield from _apart(one[key], two[key], f"{where}[{key!r}]", tolerance)
    elif isinstance(one, (list, tuple)) and isinstance(two, (list, tuple)):
        if len(one) != len(two):
            yield f"{where}: {len(one)} and {len(two)} values"
            return
        for index, (a, b) in enumerate(zip(one, two, strict=True)):
            yield from _apart(a, b, f"{where}[{index}]", tolerance)
    elif isinstance(one, str) and isinstance(two, str) and "," in one:
        yield from _apart(_fields(one), _fields(two), where, tolerance)
    elif isinstance(one, str) or one is None or isinstance(two, str) or two is None:
        if one != two:
            yield f"{where}: {one!r} and {two!r}"
    else:
        yield from _numbers_apart(np.asarray(one), np.asarray(two), where, tolerance)


def _numbers_apart(one: Any, two: Any, where: str, tolerance: float) -> Iterator[str]:
    if one.shape != two.shape:
        yield f"{where}: shapes {one.shape} and {two.shape}"
    elif one.size:
        one, two = np.asarray(one, "float64"), np.asarray(two, "float64")
        same = (one == two) | (np.isnan(one) & np.isnan(two))
        apart = np.where(same, 0.0, np.abs(one - two) / np.maximum(1.0, np.abs(one)))
        apart = np.where(np.isnan(apart), math.inf, apart)
        at = np.unravel_index(int(np.argmax(apart)), apart.shape)
        if apart[at] > tolerance:
            yield f"{where}: {float(one[at])} and {float(two[at])}, apart by {apart[at]:.1e}"


def _fields(line: str) -> list[Any]:
    """The fields of a line of CSV, numbers as numbers."""
    fields: list[Any] = []
    for each in line.split(","):
        try:
            fields.append(float(each))
        except ValueError:
            fields.append(each)
    return fields
