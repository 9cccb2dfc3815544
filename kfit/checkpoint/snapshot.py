"""A snapshot in memory, and the files that hold it.

A state is a tree: dicts with string keys, lists, JSON's values, and arrays. On disk the arrays are
one HDF5 file and the rest is JSON that names them. Nothing else can be written, and reading builds
nothing but these: no object of any class comes from a file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

ARRAYS = "arrays.h5"
STATE = "state.json"
_REFERENCE = "$array"


@dataclass(frozen=True)
class Snapshot:
    """Training state at one step.

    Attributes:
        about: What people and checks look at first, as JSON's values: step, epoch, versions ...
        state: The state itself, a tree whose leaves are JSON's values and arrays or tensors.
    """

    about: dict[str, Any]
    state: dict[str, Any]


def split(state: Any) -> tuple[Any, dict[str, Any]]:
    """A tree as JSON's values, and its arrays by the names that stand for them there.

    Raises:
        ValueError: If a value is neither of JSON nor an array; its place in the tree is named.
    """
    arrays: dict[str, Any] = {}

    def visit(value: Any, place: str) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or key == _REFERENCE:
                    raise ValueError(f"the keys of {place} must be strings. Received: {key!r}")
            return {key: visit(part, f"{place}[{key!r}]") for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [visit(part, f"{place}[{index}]") for index, part in enumerate(value)]
        if value is None or type(value) in (bool, int, float, str):
            return value
        if _is_array(value):
            arrays[f"{len(arrays):06d}"] = value
            return {_REFERENCE: f"{len(arrays) - 1:06d}"}
        raise ValueError(
            f"{place} must be a number, a string, None, an array, or a list or dict of these. "
            f"Received: {value!r} (of type {type(value)})"
        )

    return visit(state, "state"), arrays


def join(values: Any, arrays: Mapping[str, Any]) -> Any:
    """The tree that `split` took apart.

    Raises:
        ValueError: If an array is missing.
    """
    if isinstance(values, dict):
        if set(values) == {_REFERENCE}:
            if values[_REFERENCE] not in arrays:
                raise ValueError(f"array {values[_REFERENCE]!r} is missing")
            return arrays[values[_REFERENCE]]
        return {key: join(part, arrays) for key, part in values.items()}
    if isinstance(values, list):
        return [join(part, arrays) for part in values]
    return values


def to_json(values: Any) -> bytes:
    """JSON as bytes, dicts in their order; numbers that are none are kept as such."""
    return json.dumps(values, indent=1).encode()


def _is_array(value: Any) -> bool:
    if not isinstance(value, (np.ndarray, np.generic)):
        # A tensor, by what it can do: this module serves without TensorFlow.
        return hasattr(value, "__array__") and value.dtype.name != "string"
    return value.dtype.kind not in "OSUMm"
