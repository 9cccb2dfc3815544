"""Tells what the program's own classes keep in layers and metrics, besides variables.

A data set may call a layer of the program's that draws from a generator of NumPy, and a callback
may hold a metric of the program's that appends to a list. Keras knows nothing of such attributes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from types import CodeType
from typing import Any

import keras

from kfit.objects.fields import fields_of
from kfit.user_files.written_here import is_written_here

OF_TRAINING = frozenset({"built", "stop_training", "stop_evaluating", "stop_predicting"})
"""Attributes that the code of a program may set, and that are no state of its own."""
OWN = "own attributes"
"""The part of a path that leads from a layer or metric to its `OwnFields`."""
_LISTED = (
    *(keras.Variable, keras.random.SeedGenerator),
    *(keras.optimizers.Optimizer, keras.Metric),
)
"""Classes of attributes that Keras lists the variables of."""


class OwnFields(dict[str, Any]):
    """The attributes that the program's classes have given to a layer or metric, by their names.

    Setting or deleting an item sets or deletes the attribute.

    Args:
        value: The layer or metric.
    """

    def __init__(self, value: Any) -> None:
        kind: Any = type(value)
        left_out = _of_keras(kind)
        self._fields = fields_of(value)
        super().__init__(
            {
                name: held
                for name, held in self._fields.items()
                if name not in left_out and not name.startswith(("_self_", "_kfit_"))
                if not isinstance(held, _LISTED)
            }
        )

    def __setitem__(self, name: str, value: Any) -> None:
        super().__setitem__(name, value)
        self._fields[name] = value

    def __delitem__(self, name: str) -> None:
        super().__delitem__(name)
        del self._fields[name]


def is_of_program(value: Any) -> bool:
    """Returns whether a value is a layer or metric of a class that the program defines."""
    return isinstance(value, (keras.Layer, keras.Metric)) and is_written_here(
        type(value).__module__
    )


def names_used_by(kind: type) -> Iterator[str]:
    """Yields the names of attributes and global variables that the methods of a class use."""
    for value in vars(kind).values():
        code = code_of_method(value)
        if code is not None:
            yield from _names_in_code(code)


def code_of_method(value: Any) -> CodeType | None:
    """Returns the code of a method as a class holds it; None if the value is no method."""
    function: Any = getattr(value, "__func__", value)
    while hasattr(function, "__wrapped__"):  # Keras decorates some methods
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return code if isinstance(code, CodeType) else None


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    inner: Any
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in_code(inner)


@lru_cache(maxsize=1024)
def _of_keras(kind: Any) -> frozenset[str]:
    """Returns the attributes of a class's objects that only the base classes of Keras name."""
    used: dict[bool, set[str]] = {True: set(), False: set()}
    for each in kind.__mro__:
        used[is_written_here(each.__module__)].update(names_used_by(each))
    return frozenset((used[False] - used[True]) | OF_TRAINING)
