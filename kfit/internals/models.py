"""Functions that read and change private state of a model, such as its compile arguments."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.internals.layers import all_layers
from kfit.internals.private import imported, uses

KerasFunctional: Any = imported(
    "keras.src.models.functional.Functional",
    because="Keras exports the class of functional models under no name",
)

_saved_names: dict[type, str] = imported(
    "keras.src.api_export.REGISTERED_OBJS_TO_NAMES",
    because="`register_keras_serializable` names classes that only their own package can load",
)

infer_output: Any = imported(
    "keras.src.backend.compute_output_spec",
    because="the public `Layer.compute_output_spec` does not build the layers inside",
)


class Given(NamedTuple):
    """The losses and metrics of a model as the user passed them to `compile`.

    Each attribute is None if the argument was not passed.
    """

    loss: Any
    metrics: Any
    weighted_metrics: Any


def save_under(cls: type, name: str) -> None:
    """Makes Keras save objects of a class under the name of another class.

    So the saved objects can be loaded without kfit, as objects of the other class.

    Args:
        cls: The class of the saved objects.
        name: The name of the other class, as Keras registers it.
    """
    _saved_names[cls] = name


@uses("keras.Model._compile_loss", because="`Model.loss` is what was given, not what is computed")
def compiled_loss(model: keras.Model) -> Any:
    """Returns the object that computes the losses with which a model was compiled.

    None if there are no losses.
    """
    return getattr(model, "_compile_loss", None)


@uses("keras.Model._compile_metrics", because="`Model.metrics` tells it not from the user's own")
def compiled_metrics(model: keras.Model) -> Any:
    """Returns the object that computes the metrics with which a model was compiled.

    None if there are no metrics.
    """
    return getattr(model, "_compile_metrics", None)


@uses(
    "keras.Model._compile_loss._user_loss",
    "keras.Model._compile_metrics._user_metrics",
    "keras.Model._compile_metrics._user_weighted_metrics",
    because="`Model.loss` is a method where no loss was given, and metrics are not told at all",
)
def given_to_compile(model: keras.Model) -> Given:
    """Returns the losses and metrics of a model as the user passed them to `compile`."""
    # A model that was never compiled has neither attribute.
    loss, metrics = getattr(model, "_compile_loss", None), getattr(model, "_compile_metrics", None)
    return Given(
        None if loss is None else loss._user_loss,
        None if metrics is None else metrics._user_metrics,
        None if metrics is None else metrics._user_weighted_metrics,
    )


@uses("keras.Model._compile_config.config", because="`get_compile_config` serializes what it tells")
def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """Returns the arguments of a model's last `compile`; empty if `compile` was never called."""
    return dict(getattr(getattr(model, "_compile_config", None), "config", {}))


@uses(
    "keras.Model._compute_loss", because="`compute_loss` may not take `training`, as users write it"
)
def compute_loss(model: keras.Model) -> Any:
    """Returns the method by which Keras calls a model's `compute_loss`.

    Keras' method passes `training` on only if the model's own `compute_loss` accepts this argument.
    """
    return model._compute_loss


@uses("keras.Model._loss_tracker", because="no public attribute tells whether it was compiled anew")
def loss_tracker(model: keras.Model) -> Any:
    """Returns the metric that logs a model's loss; None if the model was never compiled.

    Each call of `compile` makes a new metric object. So kfit compares two results of this function
    to find out whether the model was compiled again.
    """
    return model._loss_tracker


def last_compile(model: keras.Model) -> tuple[Any, ...]:
    """Returns a value that changes when the model is compiled, or gets another optimizer.

    Two values are equal if neither has happened in between. A value keeps no object alive: it is
    made of weak references to the metric that logs the loss, and to the optimizer.
    """
    held = loss_tracker(model), getattr(model, "optimizer", None)
    return tuple(None if part is None else weakref.ref(part) for part in held)


def runs_eagerly(model: keras.Model) -> bool:
    """Returns whether Python code in a model's steps runs at each step, and not only when traced.

    It does with `run_eagerly=True`, and while `tf.config.run_functions_eagerly(True)` holds.
    """
    return bool(model.run_eagerly) or tf.config.functions_run_eagerly()


@uses("keras.Model._resolve_auto_jit_compile", because="`compile` tells only what it has resolved")
def auto_jit_compile(model: keras.Model) -> bool:
    """Returns whether Keras resolves `jit_compile="auto"` to True for this model."""
    return bool(model._resolve_auto_jit_compile())


@uses(
    "keras.Model._flatten_metrics_in_order", because="the list that `evaluate` returns is its own"
)
def metrics_in_order(model: keras.Model, logs: dict[str, Any]) -> Any:
    """Converts logs to the list or number that `evaluate` returns with `return_dict=False`."""
    return model._flatten_metrics_in_order(logs)


@uses("keras.Model._initial_epoch", because="Keras' BackupAndRestore asks for an epoch by it")
def asked_initial_epoch(model: keras.Model) -> int | None:
    """Returns the epoch at which a callback has requested `fit` to begin; None if none has.

    Keras' BackupAndRestore requests an epoch to resume a training.
    """
    epoch: int | None = model._initial_epoch
    return epoch


@uses(
    "keras.Model._distribute_strategy", because="`distribute_strategy` tells a scope not from none"
)
def strategy_made_in(model: keras.Model) -> tf.distribute.Strategy | None:
    """Returns the strategy in whose scope a model was made.

    None if the model was made outside of any strategy's scope.
    """
    return getattr(model, "_distribute_strategy", None)


@uses("keras.Model._distribute_strategy", because="no public attribute can be set")
def forget_strategy(model: keras.Model) -> None:
    """Makes Keras treat a model as if it was made outside of any strategy's scope."""
    model._distribute_strategy = None


@uses(
    "keras.Sequential._layers",
    because="a `Sequential` keeps the shape with which its building has failed, and refuses others",
)
@contextmanager
def forgetting_failed_inputs(model: keras.Model) -> Iterator[None]:
    """Context after whose error a model that it could not build may be built for another shape.

    Keras puts an `InputLayer` in front of a `Sequential` before it calls the other layers. If one
    of them fails, the next attempt would fail because of that `InputLayer`, and hide the error.

    Args:
        model: The model, which may contain models.
    """
    try:
        yield
    except Exception:
        for each in all_layers(model):
            if isinstance(each, keras.Sequential) and not each.built and len(each._layers) > 1:
                first, *others = each._layers
                if isinstance(first, keras.layers.InputLayer):  # one of the user's builds at once
                    each._layers = others
        raise
