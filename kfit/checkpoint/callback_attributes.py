"""Selects which attributes of a callback are saved in snapshots.

A callback that the program gives a `state_dict` has no other state than this. Of the others:

- A direct subclass of `keras.callbacks.Callback`: all attributes.
- A subclass of another callback of Keras or kfit: the attributes that the code of the subclass
  names, and those that the code of the base classes does not, since all others are theirs; and
  attributes that hold objects of the program.
- A callback of Keras or kfit itself: only attributes that hold objects of the program, such as one
  with a `__call__` that was given to a `LearningRateScheduler`. If the program gave functions to
  the callback, as to a `LambdaCallback`, the variables that these functions use are saved.
- Of a callback of Keras that has a state, and of its subclasses: its settings as well, such as
  `patience`, since other callbacks may change them.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Container
from typing import Any

import keras

from kfit.objects import Attributes
from kfit.objects.keras_parts import names_used_by
from kfit.objects.names import found_in
from kfit.objects.plain_objects import is_own

_OF_KERAS = frozenset({"_model", "params"})
"""Attributes that Keras sets on every callback, which are not part of its state."""

_NO_SETTINGS = frozenset(
    {"monitor", "mode", "min_delta", "filepath", "directory", "append", "self", "args", "kwargs"}
)
"""Arguments of Keras' callbacks that kfit tells them apart by, and such as Keras itself changes."""


def attributes_of(
    callback: keras.callbacks.Callback, remembered: Collection[str], foreign: Container[int]
) -> Attributes | None:
    """Returns an object that saves and restores the attributes of a callback in snapshots.

    For a direct subclass of `keras.callbacks.Callback` all attributes are included, for other
    callbacks only those of the user's own code. The result is None for a callback of Keras or kfit
    that runs no code of the user's.

    Args:
        callback: The callback. It has no `state_dict`, or that of a callback of kfit.
        remembered: Names of attributes to leave out, since they are saved in another way; empty for
            a callback that has no state of Keras.
        foreign: Ids (as of `id`) of objects to leave out, since they are not part of the callback,
            such as the model's variables.
    """
    kinds = [kind for kind in type(callback).__mro__ if not is_of_library(kind)]
    bases = [kind for kind in type(callback).__mro__ if is_of_library(kind)]
    settings = _settings_of(bases[0]) if remembered else set()
    given = {name for name, value in vars(callback).items() if _is_given(value, callback)}
    if not kinds:
        given |= settings
        is_used = given or found_in(callback)
        return Attributes(callback, given.__contains__, foreign) if is_used else None
    left_out = _OF_KERAS | ({"training"} if hasattr(bases[0], "training") else set())
    named = {name for kind in kinds for name in names_used_by(kind)}
    of_bases = {name for kind in bases for name in names_used_by(kind)} - named - settings - given
    if bases[0] is keras.callbacks.Callback:
        of_bases = set()

    def looks(name: str) -> bool:
        return name not in left_out and name not in remembered and name not in of_bases

    return Attributes(callback, looks, foreign)


def is_of_library(defined: Any, libraries: Container[str] = ("keras", "kfit")) -> bool:
    """Returns whether a class or a method is defined by a library or, as `object`, by Python.

    Args:
        defined: The class or method.
        libraries: The names of the packages that count.
    """
    module = str(defined.__module__)  # None for what `exec` has made without a module's name
    return defined is object or module.partition(".")[0] in libraries


def _settings_of(kind: type) -> set[str]:
    """Returns the names of the arguments that a class of Keras keeps as attributes."""
    return set(inspect.signature(kind).parameters) - _NO_SETTINGS


def _is_given(value: Any, callback: keras.callbacks.Callback) -> bool:
    return is_own(value, callback) and not type(value).__module__.startswith("kfit.")
