"""Finds out whether a model runs code of the user's, and whether kfit can read what it computes."""

from __future__ import annotations

import types
from functools import partial
from typing import Any

import keras

from kfit.distribute.owned import owned_optimizers
from kfit.distribute.strategy import Strategy
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.layers import all_layers
from kfit.internals.models import KerasFunctional, given_to_compile, runs_eagerly

_LIBRARIES = ("keras", "kfit", "tensorflow")
_FUNCTIONS = (types.FunctionType, types.MethodType, partial)
_FUNCTIONS_OF_LAYERS = ("activation", "regularizer")
"""How the attributes of a layer end that may hold an object of a class in place of a function."""
_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
_UPDATES = ("apply", "apply_gradients", "scale_loss")
"""The methods of an optimizer that get a replica's own loss or gradients."""


def has_own_code(model: keras.Model) -> bool:
    """Returns whether a model has a step, layer, loss, metric or optimizer that is the user's own.

    That is one that neither Keras nor kfit defines. Operations of `keras.ops` in a functional model
    count if they may combine examples. Such code may compute anything from the examples of a
    batch and from their number. On several replicas it gets only the examples of one replica, so
    kfit must find out how to combine the values that it computes on the replicas.
    """
    steps = [getattr(model, name) for name in _STEPS]
    given = keras.tree.flatten(list(given_to_compile(model)))
    parts = [*steps, *all_layers(model), *model.metrics, *given]
    if not all(is_of_keras(part) and not calls_own_function(part) for part in parts):
        return True
    return _has_own_update(model) or _has_operations_across(model)


def _has_own_update(model: keras.Model) -> bool:
    """Returns whether an optimizer of a model may change a replica's own loss or gradients.

    It may if its class, or the optimizer itself, has a method of the user's for it, such as an
    `apply` that clips. A method `update_step` gets gradients that are summed over the replicas.
    """
    optimizers = owned_optimizers(model)
    return not all(is_of_keras(getattr(each, name)) for each in optimizers for name in _UPDATES)


def _has_operations_across(model: keras.Model) -> bool:
    """Returns whether operations in a functional model may combine examples with each other."""
    return any(
        _may_combine(operation)
        for each in all_layers(model)
        if isinstance(each, KerasFunctional)
        for operation in each.operations
        if not isinstance(operation, keras.Layer)
    )


def _may_combine(operation: keras.Operation) -> bool:
    """Returns whether an operation works along the first axis, or has results without it."""
    given, made = map(keras.tree.flatten, (operation.input, operation.output))
    ranks = {len(each.shape) for each in given if hasattr(each, "shape")} - {0}
    axes = keras.tree.flatten(getattr(operation, "axis", None))
    is_along = any(axis % rank == 0 for axis in axes if isinstance(axis, int) for rank in ranks)
    is_without = any(tuple(each.shape)[:1] != (None,) for each in made)
    return is_along or is_without or hasattr(operation, "subscripts")  # of an einsum


def has_outputs_without_rows(model: keras.Model) -> bool:
    """Returns whether a model is known to have outputs whose first axis is not of the examples.

    Operations of Keras can make such outputs, such as `keras.ops.mean(x, 0)` in a functional model.
    """
    outputs = keras.tree.flatten(getattr(model, "outputs", None))
    return any(tuple(getattr(each, "shape", (None,)))[:1] != (None,) for each in outputs)


def calls_own_function(part: Any) -> bool:
    """Returns whether an object of Keras, such as a Lambda layer, has a function of the user's.

    The function may be an object of the user's class, such as a regularizer of what a layer
    computes.
    """
    held = vars(part) if hasattr(part, "__dict__") else {}
    if any(isinstance(value, _FUNCTIONS) and not _is_of_library(value) for value in held.values()):
        return True
    objects = (value for name, value in held.items() if name.endswith(_FUNCTIONS_OF_LAYERS))
    return any(
        callable(value) and not isinstance(value, _FUNCTIONS) and not _is_of_library(type(value))
        for value in objects
    )


def _is_of_library(function: Any) -> bool:
    while isinstance(function, partial):
        function = function.func
    return str(function.__module__).partition(".")[0] in _LIBRARIES


def overrides(model: keras.Model, method: str) -> bool:
    """Returns whether a model or its class overrides a method of `keras.Model`."""
    return method in vars(model) or getattr(type(model), method) is not getattr(keras.Model, method)


def takes_one_loss(model: keras.Model) -> bool:
    """Returns whether the gradients of one loss reach the optimizer of a model as they are.

    They do in Keras' own `train_step`, unless the program's own code updates the weights.
    """
    has_optimizer = getattr(model, "optimizer", None) is not None
    return has_optimizer and not overrides(model, "train_step") and not _has_own_update(model)


def warn_if_unread(model: keras.Model, strategy: Strategy) -> None:
    """Warns if several replicas run code of the user's that kfit cannot read in a graph.

    On several replicas kfit reads in the graph what such code computes from a replica's examples: a
    mean or a sum, for example. This is not possible on a TPU, in eager steps, nor with
    `jit_compile`. On one replica it is not needed, so there is no warning.

    Args:
        model: The model, compiled.
        strategy: kfit's wrapper of the `tf.distribute` strategy that will run the steps.
    """
    if strategy.static_shapes:
        how = f"On strategy {strategy.name!r}"
    elif runs_eagerly(model):
        switch = (
            "run_eagerly=True" if model.run_eagerly else "tf.config.run_functions_eagerly(True)"
        )
        how = f"With `{switch}`"
    elif model.jit_compile:
        how = "With `jit_compile=True`"
    else:
        return
    if strategy.num_replicas > 1 and has_own_code(model):
        warn_user(
            f"{how} kfit cannot read what a step, layer, loss, metric or optimizer that is not of "
            "Keras' own computes from the examples of a replica. It assumes that scalars are means "
            "over the examples, that integers count them, that an array that a step returns has a "
            "row for each example if the sizes fit and is a mean otherwise, and that a step or an "
            "optimizer's `apply` changes gradients only linearly. Sums, roots, integers that are "
            "constant, and gradients that are clipped by hand will depend on how many replicas "
            "there are. Let Keras' losses, metrics and optimizers compute such numbers."
        )


def is_of_keras(part: Any) -> bool:
    """Returns whether a function, or the class of an object, is defined in Keras or kfit.

    None and strings count as Keras' own, since strings are names of Keras' losses and metrics.
    """
    if part is None or isinstance(part, str):
        return True
    module = getattr(part, "__module__", None) or type(part).__module__
    return str(module).partition(".")[0] in ("keras", "kfit")
