"""Finds the variables, metrics and optimizers that belong to a model.

Keras itself lists only those in attributes of layers and metrics. A `train_step` may as well use
an optimizer in an object of the program, and a loss may keep a variable.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import keras

from kfit.distribute.contents import DEEPEST, VALUES, holds_only_values
from kfit.internals.layers import all_layers
from kfit.user_files.written_here import is_written_here

_PARTS = (keras.optimizers.Optimizer, keras.Metric, keras.Variable)
_NEVER_OPENED = (keras.Layer, keras.callbacks.Callback, type)
_LONG = 100
"""A container of more values, such as a vocabulary, is first looked at by fast code."""
_MOST_OBJECTS = 1000
"""The most objects of the program that are searched, such as the nodes of a tree."""


class Owned(NamedTuple):
    """The variables of a model, of its metrics and of its optimizers, and the optimizers."""

    variables: list[keras.Variable]
    optimizers: list[keras.optimizers.Optimizer]


def owned_variables(model: keras.Model) -> list[keras.Variable]:
    """Returns the Keras variables of a model, of its metrics and of its optimizers.

    Each variable is listed once. The order is the same in every call.
    """
    return owned_by(model).variables


def owned_metrics(model: keras.Model) -> list[keras.Metric]:
    """Returns all metrics of a model, including those inside its layers and in other metrics."""
    return [part for part in _parts(model) if isinstance(part, keras.Metric)]


def owned_optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """Returns all optimizers of a model, including those that its layers hold.

    If an optimizer wraps others, as a LossScaleOptimizer does, the wrapped optimizers are included.
    """
    return owned_by(model).optimizers


def owned_by(model: keras.Model) -> Owned:
    """Searches the attributes of a model once for all its variables and optimizers."""
    variables: dict[int, keras.Variable] = {}
    optimizers: dict[int, keras.optimizers.Optimizer] = {}

    def add(found: Any) -> None:
        for variable in found:
            variables.setdefault(id(variable), variable)

    def add_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
        if id(optimizer) not in optimizers:
            optimizers[id(optimizer)] = optimizer
            for part in wrapped_optimizers(optimizer):
                add_optimizer(part)

    add(model.variables)
    add(variable for metric in model.metrics for variable in metric.variables)
    for part in _parts(model):
        add([part] if isinstance(part, keras.Variable) else part.variables)
        if isinstance(part, keras.optimizers.Optimizer):
            add_optimizer(part)
    for optimizer in optimizers.values():
        add(optimizer.variables)
    return Owned(list(variables.values()), list(optimizers.values()))


def wrapped_optimizers(optimizer: keras.optimizers.Optimizer) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizers that an optimizer updates variables by, without those inside of them.

    Keras' own classes have them in known attributes. Any attribute of other classes is searched.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    held = [inner] if inner is not None else list(getattr(optimizer, "optimizers", []))
    if type(optimizer).__module__.partition(".")[0] != "keras":
        search = _Search()
        search.add(vars(optimizer).values())
        held += search.found
    return [part for part in held if isinstance(part, keras.optimizers.Optimizer)]


def _parts(model: keras.Model) -> list[Any]:
    """Returns the optimizers, metrics and variables in the attributes of a model and of its layers.

    Layers at any depth are searched, and so are lists, tuples and dicts in the attributes, and the
    attributes of metrics, losses, name spaces and objects of the program's classes. The search must
    be fast, since every `train_on_batch` calls it.
    """
    search = _Search()
    for layer in all_layers(model):
        search.add(vars(layer).values())
    return search.found


class _Search:
    """A search for optimizers, metrics and variables, each once.

    Attributes:
        found: Those that have been found.
    """

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._seen: set[int] = set()
        self._objects_left = _MOST_OBJECTS

    def add(self, values: Iterable[Any], depth: int = 0) -> None:
        """Adds what is found in some values.

        Args:
            values: The values.
            depth: How many containers and objects they are in.
        """
        for value in list(values):
            kind: Any = type(value)
            if kind in VALUES or id(value) in self._seen or depth > DEEPEST:
                continue
            if isinstance(value, (list, tuple, dict)):
                if len(value) and not (len(value) > _LONG and holds_only_values(value)):
                    self._seen.add(id(value))
                    self.add(value.values() if isinstance(value, dict) else value, depth + 1)
            elif isinstance(value, _PARTS):
                self._seen.add(id(value))
                self.found.append(value)
                # Until compiled metrics are built, the user's can be found only as attributes.
                if isinstance(value, keras.Metric):
                    self.add(vars(value).values(), depth + 1)
            elif self._objects_left and _is_opened(kind):
                self._seen.add(id(value))
                self._objects_left -= 1
                self.add(object.__getattribute__(value, "__dict__").values(), depth + 1)


@lru_cache(maxsize=4096)
def _is_opened(kind: Any) -> bool:
    """Returns whether the attributes of an object are searched, by its class."""
    if issubclass(kind, _NEVER_OPENED) or not kind.__dictoffset__:
        return False
    is_plain = kind in (SimpleNamespace, argparse.Namespace) or is_written_here(kind.__module__)
    return bool(is_plain or issubclass(kind, keras.Loss))
