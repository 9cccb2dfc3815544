"""Functions that check the form of values which were read from a file, such as a snapshot's state.

A check gets a value and its place in the file, and raises ValueError with the place if the value
has another form than it must have. Larger checks are made of smaller ones.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np

Check: TypeAlias = Callable[[Any, str], None]
"""A function that gets a value and its place in the file, and raises ValueError if it is wrong."""

LARGEST = 1 << 62
"""The greatest number that a count, for example of steps, can be."""

_ORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""The characters that change in which order a terminal shows the others."""


def is_a(*kinds: type) -> Check:
    """Returns a check that a value is of exactly one of some types."""

    def check(value: Any, place: str) -> None:
        if type(value) not in kinds:
            expected = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{place} is of type {type(value).__name__}; expected {expected}")

    return check


def at_most(most: int) -> Check:
    """Returns a check that a value is a whole number from 0 to `most`."""
    expected = "from 0 up" if most == LARGEST else f"from 0 to {most:,}"

    def check(value: Any, place: str) -> None:
        if type(value) is not int or not 0 <= value <= most:
            raise ValueError(f"{place} is {value!r:.50}; expected a whole number {expected}")

    return check


count = at_most(LARGEST)
"""Checks that a value is a whole number from 0 up."""


def seed(value: Any, place: str) -> None:
    """Checks that a value is a whole number of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"{place} is {value!r:.50}; expected a whole number of 64 bits")


def seconds(value: Any, place: str) -> None:
    """Checks that a value is a finite time in seconds."""
    if type(value) is not float or not 0 <= value < float("inf"):
        raise ValueError(f"{place} is {value!r:.50}; expected seconds of at least 0")


def text(value: Any, place: str) -> None:
    """Checks that a value is a text that UTF-8 can encode.

    It may have any characters, since the names of models, layers and metrics may. So whoever prints
    it must escape it (`kfit.cluster.printable`).
    """
    is_a(str)(value, place)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{place} is {value!r:.50}; expected a text that UTF-8 can encode")


def line(value: Any, place: str) -> None:
    """Checks that a value is a text that can be printed: it has no control characters.

    Spaces of all kinds and the invisible characters that join letters and emoji are allowed.
    """
    text(value, place)
    if any(unicodedata.category(each) in ("Cc", "Zl", "Zp") or each in _ORDERING for each in value):
        raise ValueError(f"{place} is {value!r:.50}; expected a text without control characters")


def number(value: Any, place: str) -> None:
    """Checks that a value is a real number, of Python or as an array without dimensions."""
    if isinstance(value, (np.ndarray, np.generic)):
        if value.ndim or value.dtype.kind not in "biuf":
            raise ValueError(f"{place} is an array of {value.dtype}; expected a number")
    elif type(value) is int:
        if not -(1 << 63) <= value < 1 << 63:
            raise ValueError(f"{place} is {value!r:.50}; expected a number of 64 bits")
    else:
        is_a(float)(value, place)


def optional(check: Check) -> Check:
    """Returns a check that a value is None or passes another check."""
    return lambda value, place: None if value is None else check(value, place)


def each(check: Check) -> Check:
    """Returns a check that a value is a list whose items pass another check."""

    def check_items(value: Any, place: str) -> None:
        is_a(list)(value, place)
        for index, item in enumerate(value):
            check(item, f"{place}[{index}]")

    return check_items


def each_value(check: Check) -> Check:
    """Returns a check that a value is a dict whose values pass another check."""

    def check_values(value: Any, place: str) -> None:
        is_a(dict)(value, place)
        for name, item in value.items():
            check(item, f"{place}[{name!r:.50}]")

    return check_values


def record(fields: Mapping[str, Check], *, may: Mapping[str, Check] | None = None) -> Check:
    """Returns a check that a value is a dict with certain keys and no others.

    Args:
        fields: A check for the value of each key that the dict must have.
        may: A check for the value of each further key that it may have.
    """
    known = {**fields, **(may or {})}

    def check_fields(value: Any, place: str) -> None:
        is_a(dict)(value, place)
        for name in fields:
            if name not in value:
                raise ValueError(f"{place}[{name!r}] is missing")
        for name, item in value.items():
            if name not in known:
                raise ValueError(f"{place} has a key {name!r:.50}, which is none of its keys")
            known[name](item, f"{place}[{name!r}]")

    return check_fields


def array(value: Any, place: str) -> None:
    """Checks that a value is an array."""
    if not isinstance(value, np.ndarray):
        raise ValueError(f"{place} is of type {type(value).__name__}; expected an array")


def vector_of(*dtypes: str, length: int | None = None) -> Check:
    """Returns a check that a value is an array of one dimension.

    Args:
        *dtypes: The dtypes that it may have.
        length: The number of its items; None for any.
    """

    def check(value: Any, place: str) -> None:
        array(value, place)
        wrong_length = length is not None and value.shape != (length,)
        if value.dtype.name not in dtypes or value.ndim != 1 or wrong_length:
            raise ValueError(f"{place} is {value.dtype} of shape {value.shape}")

    return check
