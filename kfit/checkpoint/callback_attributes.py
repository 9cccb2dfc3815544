"""Which attributes of a callback are looked at, where it says no state of its own.

Of a callback that is made from `keras.callbacks.Callback` all are; of one that is made from another
callback of Keras or kfit those that its own code names, since the rest belongs to that. Of one of
Keras' or kfit's own only what the functions of the program's refer to that it was given.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from types import CodeType
from typing import Any

import keras

from kfit.objects import Attributes
from kfit.objects.names import names_in

_OF_KERAS = frozenset({"_model", "params", "validation_data", "training"})
"""What every callback is given, and is no state of its."""


def attributes_of(
    callback: keras.callbacks.Callback, remembered: Container[str], foreign: Container[int]
) -> Attributes | None:
    """What is looked at of a callback; None of one that has no code of the program's.

    Args:
        callback: The callback.
        remembered: Names of attributes whose state is known otherwise.
        foreign: Identities of the variables that belong to the model.
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
    """Every name that the methods of a class use."""
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
