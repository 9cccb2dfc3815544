"""A snapshot in memory, and its conversion to and from files.

The state in a snapshot is a tree of dicts with string keys, lists, JSON values and arrays. On disk
the arrays are in an HDF5 file. The remaining tree is a JSON file that refers to the arrays by name.
Other types cannot be saved. So reading the files creates only values of these types, and no objects
of classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kfit.user_files.foreign_json import DEEPEST

ARRAYS = "arrays.h5"
STATE = "state.json"
_REFERENCE = "$array"
_DEEPEST = DEEPEST - 10
"""The most lists and dicts in each other. The JSON of a snapshot has a few more, such as the
references to arrays, and must still be read."""


@dataclass(frozen=True)
class Snapshot:
    """The state of a training after one step.

    Attributes:
        about: A description as JSON values: step, epoch, versions and so on. On disk it is in the
            manifest, so that it can be read without the state.
        state: The state itself, a tree of dicts and lists whose leaves are JSON values and arrays
            or tensors.
        path: The folder that the snapshot was read from; empty if it was not read from a folder.
    """

    about: dict[str, Any]
    state: dict[str, Any]
    path: str = field(default="", compare=False)

    @property
    def described(self) -> str:
        """Which snapshot this is, for messages: its step, and the folder it was read from."""
        return f"step {self.about['step']}" + (f" in {self.path}" if self.path else "")

    def __repr__(self) -> str:
        known = (key for key in ("step", "epoch", "model") if key in self.about)
        shown = "".join(f", {key} {self.about[key]!r}" for key in known)
        return f"<kfit.checkpoint.Snapshot{shown}>"


def split(state: Any) -> tuple[Any, dict[str, Any]]:
    """Splits a tree of dicts and lists into JSON values and arrays, to write them to two files.

    Returns:
        The tree, in which each array is replaced by a reference (a dict with a name); and the
        arrays by their names.

    Raises:
        ValueError: If a value is neither a JSON value nor an array, or the key of a dict is not a
            string or is "$array", or the tree is too deep. The message says where in the tree.
    """
    arrays: dict[str, Any] = {}

    def visit(value: Any, place: str, depth: int = 0) -> Any:
        _require_shallow(depth)
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) or key == _REFERENCE:
                    raise ValueError(f"the keys of {place} must be strings. Received: {key!r}")
            return {key: visit(part, f"{place}[{key!r}]", depth + 1) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return [visit(part, f"{place}[{index}]", depth + 1) for index, part in enumerate(value)]
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


def join(values: Any, arrays: Mapping[str, Any], depth: int = 0) -> Any:
    """Puts arrays back into a tree of JSON values; the inverse of `split`.

    Args:
        values: The tree, in which references (dicts with a name) stand for the arrays.
        arrays: The arrays by name.
        depth: How many lists and dicts the tree is inside of.

    Raises:
        ValueError: If an array is missing, or the tree is too deep.
    """
    _require_shallow(depth)
    if isinstance(values, dict):
        if _REFERENCE in values:
            name = values[_REFERENCE]
            if len(values) > 1 or not isinstance(name, str) or name not in arrays:
                raise ValueError(f"array {name!r:.50} is missing")
            return arrays[name]
        return {key: join(part, arrays, depth + 1) for key, part in values.items()}
    if isinstance(values, list):
        return [join(part, arrays, depth + 1) for part in values]
    return values


def without_others(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs, or the lists of a History, without the values that `split` refuses.

    In a list such a value becomes None, so that the others keep their places.
    """
    return {
        key: [part if _is_kept(part) else None for part in value]
        if isinstance(value, list)
        else value
        for key, value in logs.items()
        if isinstance(value, list) or _is_kept(value)
    }


def with_scalars(tree: Any) -> Any:
    """Returns a copy of a tree, with NumPy's scalars in place of arrays of no dimension.

    On disk both are the same, but only a scalar can be formatted, and a float64 be written as JSON.
    The arrays are copied, too: whoever gets the tree may write into them, and a snapshot in memory
    is restored again.
    """
    if isinstance(tree, dict):
        return {key: with_scalars(part) for key, part in tree.items()}
    if isinstance(tree, list):
        return [with_scalars(part) for part in tree]
    return tree.copy()[()] if isinstance(tree, np.ndarray) else tree


def _is_kept(value: Any) -> bool:
    try:
        split(value)
    except ValueError:
        return False
    return True


def to_json(values: Any) -> bytes:
    """Encodes values as JSON, also NaN and infinity; dicts keep the order of their keys."""
    return json.dumps(values, indent=1).encode()


def _require_shallow(depth: int) -> None:
    if depth > _DEEPEST:
        raise ValueError(f"the state has more than {_DEEPEST} lists and dicts in each other")


def _is_array(value: Any) -> bool:
    if not isinstance(value, (np.ndarray, np.generic)):
        # A tensor or a variable of TensorFlow or Keras, recognized by its attributes: this module
        # does not import them. The dtype of Keras' is a string.
        kind = getattr(value, "dtype", "string")
        return hasattr(value, "__array__") and getattr(kind, "name", kind) != "string"
    return value.dtype.kind not in "OSUMm"
