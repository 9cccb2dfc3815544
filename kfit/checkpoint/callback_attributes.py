"""Selects which attributes of a callback are its state, if it does not define `state_dict`.

- A direct subclass of `keras.callbacks.Callback`: all attributes.
- A subclass of another callback of Keras or kfit: the attributes that the code of the subclass
  names, since all others belong to the base class.
- A callback of Keras or kfit itself: no attributes, only the variables that are used by functions
  of the program that it was given, for example those of a `LambdaCallback`.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from types import CodeType
from typing import Any

import keras

from kfit.objects import Attributes
from kfit.objects.names import names_in

_OF_KERAS = frozenset({"_model", "params", "validation_data", "training"})
"""Attributes that Keras sets on every callback, which are not part of its state."""


def attributes_of(
    callback: keras.callbacks.Callback, remembered: Container[str], foreign: Container[int]
) -> Attributes | None:
    """Returns the attributes that are a callback's state.

    The result is None if no code of the callback belongs to the user's program.

    Args:
        callback: The callback.
        remembered: Names of attributes that are saved in another way.
        foreign: Ids (as of `id`) of objects that belong to others, such as the model's variables.
    """
    kinds = [kind for kind in type(callback).__mro__ if not _is_known(kind)]
    bases = [kind for kind in type(callback).__mro__ if _is_known(kind)]
    if not kinds:
        return Attributes(callback, lambda name: False, foreign) if names_in(callback) else None
    is_plain = bases[0] is keras.callbacks.Callback
    named = set() if is_plain else {name for kind in kinds for name in _names_in(kind)}

    def looks(name: str) -> bool:
        if name in _OF_KERAS or name in remembered:
            return False
        return is_plain or name in named

    return Attributes(callback, looks, foreign)


def _is_known(kind: type) -> bool:
    return kind is object or kind.__module__.partition(".")[0] in ("keras", "kfit")


def _names_in(kind: type) -> Iterator[str]:
    """Yields the names of attributes and global variables that the methods of a class use."""
    for value in vars(kind).values():
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if isinstance(code, CodeType):
            yield from _names_in_code(code)


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    inner: Any
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in_code(inner)
