"""The entries of which an object's saved state is a list: a path, and what is there.

An entry has the encoded "value" at its path, the "state" of a random generator or variable, or the
"position" of an iterator. Instead, it may tell which object is at the path, or that none is
(`bindings.py`).
"""

from __future__ import annotations

import os
import uuid
from typing import Any

import numpy as np

from kfit.objects.bindings import GONE, IS
from kfit.objects.iterators import is_iterator
from kfit.objects.own_generators import check_state, holds_state, read
from kfit.objects.search import IN_CODE, Path
from kfit.objects.values import decode, encode

_PROCESSES: dict[int, str] = {}
"""A random ID by process ID. It differs in every process, forked ones included."""


def entry_at(path: Path, entry: dict[str, Any]) -> dict[str, Any]:
    """Creates an entry of a saved state, from a path and the encoded value at this path.

    The entry of a variable that the object's code refers to also has the ID of this process, since
    the variable is restored only in other processes. This does not hold for random generators.
    """
    is_named = path[0] == IN_CODE and "state" not in entry
    return {"path": list(path), **entry, **({"process": process()} if is_named else {})}


def process() -> str:
    """Returns the ID of this process, which no other process has."""
    return _PROCESSES.setdefault(os.getpid(), uuid.uuid4().hex)


def entry_of(value: Any) -> dict[str, Any]:
    """Returns the entry of a value, still without its path."""
    if is_iterator(value) and holds_state(value):
        return {"position": read(value)}
    return {"state": read(value)} if holds_state(value) else {"value": encode(value)}


def is_rebound(entry: dict[str, Any]) -> bool:
    """Returns whether an entry tells which object is at its path, or that none is."""
    return IS in entry or GONE in entry


def key_of(path: Path, entry: dict[str, Any]) -> Path:
    """Returns a key for an entry: the path of its value, or another one for the place itself.

    An object that was moved has its state at the path of its home, where another one may be now.
    """
    return ("place", path) if is_rebound(entry) else path


def state_in(entry: dict[str, Any]) -> Any:
    """Returns the encoded state of a generator or variable, or the position of an iterator."""
    return entry.get("state", entry.get("position"))


def same(one: Any, other: Any) -> bool:
    """Returns whether two encoded values are equal, with the same types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return np.array_equal(one, other) if isinstance(one, np.ndarray) else bool(one == other)


def check_entries(state: list[dict[str, Any]]) -> None:
    """Checks that the values of an object's state, which was read from a file, can be decoded.

    Args:
        state: The state: a list of entries, as `Attributes.state_dict` returns it.

    Raises:
        Exception: If a value cannot be decoded. The error is that of the library which decodes it.
    """
    for entry in state:
        if state_in(entry) is not None:
            check_state(decode(state_in(entry)))
        elif not is_rebound(entry):
            decode(entry["value"])
