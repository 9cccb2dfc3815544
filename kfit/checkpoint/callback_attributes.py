"""Selects which attributes of a callback are saved in snapshots, if it has no `state_dict`.

- A direct subclass of `keras.callbacks.Callback`: all attributes.
- A subclass of another callback of Keras or kfit: the attributes that the code of the subclass
  names, since all others belong to the base class.
- A callback of Keras or kfit itself: no attributes. But if the program gave functions to the
  callback, as to a `LambdaCallback`, the variables that these functions use are saved.
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
    """Returns an object that saves and restores the attributes of a callback in snapshots.

    For a direct subclass of `keras.callbacks.Callback` all attributes are included, for other
    callbacks only what the user's own code uses. The result is None for a callback of Keras or kfit
    that runs no code of the user's.

    Args:
        callback: The callback, which has no `state_dict`.
        remembered: Names of attributes to leave out, since they are saved in another way.
        foreign: Ids (as of `id`) of objects to leave out, since they are not part of the callback,
            such as the model's variables.
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
