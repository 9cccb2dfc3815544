"""Finds the variables, metrics and optimizers that belong to a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import keras

from kfit.distribute.contents import VALUES, holds_only_values
from kfit.internals.layers import all_layers

_PARTS = (keras.optimizers.Optimizer, keras.Metric, keras.Variable)
_LONG = 100
"""A container of more values, such as a vocabulary, is first looked at by fast code."""


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
        optimizers.setdefault(id(optimizer), optimizer)
        inner = getattr(optimizer, "inner_optimizer", None)
        for part in [inner] if inner is not None else getattr(optimizer, "optimizers", []):
            add_optimizer(part)

    add(model.variables)
    add(variable for metric in model.metrics for variable in metric.variables)
    for part in _parts(model):
        add([part] if isinstance(part, keras.Variable) else part.variables)
        if isinstance(part, keras.optimizers.Optimizer):
            add_optimizer(part)
    return Owned(list(variables.values()), list(optimizers.values()))


def _parts(model: keras.Model) -> list[Any]:
    """Returns the optimizers, metrics and variables in the attributes of a model and of its layers.

    Layers at any depth are searched, and so are lists, tuples and dicts in the attributes, and the
    attributes of metrics. The search must be fast, since every `train_on_batch` calls it.
    """
    found: list[Any] = []
    seen: set[int] = set()
    for layer in all_layers(model):
        _add_parts(list(vars(layer).values()), seen, found)
    return found


def _add_parts(values: Iterable[Any], seen: set[int], found: list[Any]) -> None:
    for value in values:
        if type(value) in VALUES or id(value) in seen:
            continue
        if isinstance(value, (list, tuple, dict)):
            if len(value) and not (len(value) > _LONG and holds_only_values(value)):
                seen.add(id(value))
                _add_parts(list(value.values() if isinstance(value, dict) else value), seen, found)
        elif isinstance(value, _PARTS):
            seen.add(id(value))
            found.append(value)
            # Until compiled metrics are built, the user's metrics can be found only as attributes.
            if isinstance(value, keras.Metric):
                _add_parts(list(vars(value).values()), seen, found)
