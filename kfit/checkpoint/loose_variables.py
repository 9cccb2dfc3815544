"""Finds variables that a model uses but Keras does not list, such as `tf.Variable`s.

Snapshots must contain these variables, too. Keras lists only the variables that are created by
`add_weight` and by its own classes, and not a `tf.Variable`, a `tf.random.Generator`, or a seed
generator in a loss or in a plain object. The search covers

- the attributes of the model, its layers, metrics, losses and optimizers;
- lists, tuples and dicts there, objects of classes that the program defines, and name spaces;
- the closures of functions, and the global variables that the code of all these objects refers to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.contents import DEEPEST, VALUES, holds_only_values
from kfit.distribute.owned import owned_optimizers
from kfit.internals.layers import all_layers
from kfit.internals.variables import averages_of
from kfit.objects.fields import fields_of, has_fields
from kfit.objects.handles import is_open_to_looks
from kfit.objects.keras_variables import CHECKPOINTS
from kfit.objects.names import names_in
from kfit.objects.plain_objects import OF_KERAS, holds_for_program, is_function

_GENERATORS = (tf.random.Generator, keras.random.SeedGenerator)
_ENTERED = (keras.Loss, keras.Metric, keras.optimizers.schedules.LearningRateSchedule, tf.Module)


def loose_variables(model: keras.Model, owned: set[int]) -> list[tuple[str, Any]]:
    """Finds the variables that can be reached from a model and are not listed by Keras.

    Args:
        model: The model.
        owned: Ids (as of `id`) of the variables that Keras lists.

    Returns:
        Pairs of a name and a `tf.Variable` or `keras.Variable` of a numeric or boolean dtype. Names
        and order are the same in every process that runs the program, so that a snapshot can be
        restored in another process.
    """
    # Private: no public method lists the layers inside of layers, nor what `compile` was given.
    roots = [*all_layers(model), *owned_optimizers(model)]
    found: list[tuple[str, Any]] = []
    seen = {id(root) for root in roots} | owned
    for root in roots:
        for name, value in list(vars(root).items()):
            if name.startswith("_self_"):  # where TensorFlow tracks the same attributes
                continue
            found += _reached(f"{root.name}/{name}", value, seen)
        for name, value in _named(root):
            found += _reached(f"{root.name}/{name}", value, seen)
    return found


def _reached(name: str, value: Any, seen: set[int], depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yields the numeric variables in a value and in all that it contains, with their names.

    Args:
        name: The path by which the search has reached the value; the names begin with it.
        value: The value to search.
        seen: Ids (as of `id`) of the values to skip. The ids of all searched values are added.
        depth: How many containers and objects the value is in, since the depth is limited.
    """
    if type(value) in VALUES or id(value) in seen or depth > DEEPEST:
        return
    if not is_open_to_looks(value) or isinstance(value, (str, bytes, int, float, type)):
        return
    seen.add(id(value))
    inside: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, _GENERATORS):
        inside = [("state", value.state)]
    elif isinstance(value, (tf.Variable, keras.Variable)):
        if _is_numeric(value):
            yield name, value
    elif isinstance(value, (list, tuple, dict)):
        if not holds_only_values(value):
            inside = value.items() if isinstance(value, dict) else enumerate(value)
    elif isinstance(value, tf.train.ExponentialMovingAverage):
        inside = enumerate(averages_of(value))
    elif isinstance(value, OF_KERAS) and not isinstance(value, (keras.Metric, *CHECKPOINTS)):
        inside = ((variable.path, variable) for variable in value.variables)
    elif isinstance(value, _ENTERED) or _is_own(value):
        inside = [*fields_of(value).items(), *_named(value)]
    elif callable(value):
        cells = getattr(value, "__closure__", None) or ()
        inside = [*_named(value), *enumerate(map(_content, cells))]
    for key, item in list(inside):
        yield from _reached(f"{name}/{key}", item, seen, depth + 1)


def _named(value: Any) -> list[tuple[str, Any]]:
    """Returns names and values of the variables that the code of a function or object refers to."""
    return [(each.name, each.get()) for each in names_in(value)]


def _is_own(value: Any) -> bool:
    """Returns whether a value is an object of the program: of its own class, or a name space.

    Layers, optimizers and functions do not count, since they are searched in another way.
    """
    is_object = has_fields(value) and not is_function(value)
    is_of_keras = isinstance(value, (keras.Layer, keras.optimizers.Optimizer))
    return is_object and not is_of_keras and holds_for_program(value)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # the variable has not been assigned yet
        return None


def _is_numeric(variable: Any) -> bool:
    dtype = tf.as_dtype(variable.dtype)
    return dtype.is_floating or dtype.is_integer or dtype.is_bool or dtype.is_complex
