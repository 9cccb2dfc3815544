"""Checks of the arguments of `fit`, `evaluate` and `predict`, before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras

from kfit.argument_checks import check_positive, is_integer, shown
from kfit.distribute.parameter_server import ParameterServer
from kfit.distribute.strategy import Strategy
from kfit.exactness.own_code import overrides
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import Batches
from kfit.inputs.arrays import ArrayBatches
from kfit.inputs.generator import GeneratorBatches
from kfit.internals.layers import all_layers
from kfit.internals.models import given_to_compile
from kfit.lazy import closest_name
from kfit.training.callback import TrainingCallback
from kfit.training.hook_names import warn_of_misspelled_hooks


def capped_epochs(epochs: int) -> int:
    """Returns `epochs`, but not more than `keras.config.set_max_epochs` allows.

    This limit of Keras is for debugging. If `epochs` is larger, a warning is issued. An integer of
    NumPy becomes an `int`, as snapshots need it.
    """
    most = keras.config.max_epochs()
    if not most or epochs <= most:
        return int(epochs)
    warn_user(f"Limiting epochs to {most}")
    return most


def capped_steps(steps: int | None) -> int | None:
    """Returns `steps`, but not more than `keras.config.set_max_steps_per_epoch` allows.

    This limit of Keras is for debugging. If the limit is returned in place of `steps`, a warning is
    issued. An integer of NumPy becomes an `int`, as snapshots need it.

    Args:
        steps: The number of steps of an epoch, a validation, an `evaluate` or a `predict`. None
            means all the data; then the result is the limit, or None if there is no limit.
    """
    most = keras.config.max_steps_per_epoch()
    if not most or (steps and steps <= most):
        return None if steps is None else int(steps)
    warn_user(f"Limiting steps_per_epoch to {most}")
    return most


def warn_of_unused(batch_size: int | None, batches: Batches, kind: str) -> None:
    """Warns if `batch_size` was given with data that are batched already.

    Args:
        batch_size: As for `fit`; None if it was not given.
        batches: The batches that were made of the data.
        kind: The name of the class of the data.
    """
    if batch_size is None or isinstance(batches, ArrayBatches):
        return
    if batches.batch_size != batch_size:
        warn_user(
            f"`batch_size={batch_size}` has no effect: `x`, a {kind}, makes the batches itself, "
            "and they are taken as they are. `batch_size` is for arrays."
        )


def warn_of_one_reading(batches: Batches, steps_per_epoch: int | None, epochs: int) -> bool:
    """Warns if a generator, which can be read only once, shall be read once in each epoch.

    Args:
        batches: The batches that were made of the data.
        steps_per_epoch: As for `fit`.
        epochs: The number of epochs to train, without those before `initial_epoch`.

    Returns:
        Whether it has warned.
    """
    reads_all = isinstance(batches, GeneratorBatches) and steps_per_epoch is None and epochs > 1
    if reads_all:
        warn_user(
            f"`x` is a generator, and `steps_per_epoch` is not given: the first of the {epochs} "
            "epochs reads it to its end, and training stops after this epoch. If the generator "
            "never ends, neither does the epoch. Give `steps_per_epoch`, or pass data that can be "
            "read again, such as a tf.data.Dataset or a keras.utils.PyDataset."
        )
    return reads_all


def check_model(model: Any) -> None:
    """Raises a ValueError if the first argument of a Trainer is no model and makes none."""
    # A layer can be called, too, but makes no model, also if Keras' own trainer is a base class.
    if isinstance(model, keras.Model) or (callable(model) and not isinstance(model, keras.Layer)):
        return
    shape = getattr(model, "shape", None)
    received = f"{model!r} (of type {type(model)})"
    if shape is not None:
        received = f"{type(model)} of shape {tuple(shape)}. The model comes before `x` and `y`"
    raise ValueError(
        "`model` must be a keras.Model, or a function without arguments that returns one. "
        f"Received: {received}"
    )


def check_epochs(epochs: Any, initial_epoch: Any) -> None:
    """Checks the arguments `epochs` and `initial_epoch`; as in Keras, `epochs=0` is allowed.

    Raises:
        ValueError: If one of them is not an integer of at least 0.
    """
    for name, value in (("epochs", epochs), ("initial_epoch", initial_epoch)):
        if not is_integer(value) or value < 0:
            raise ValueError(f"`{name}` must be an integer of at least 0. Received: {shown(value)}")


def validation_rule(validation_freq: Any) -> Callable[[int], bool]:
    """Returns a function that gets the index of an epoch and returns whether a validation follows.

    Args:
        validation_freq: As for `fit`: a number n, for a validation after every n epochs; or a list
            of epochs, counted from 1, for a validation after each of these.

    Raises:
        ValueError: If `validation_freq` is neither an integer of at least 1 nor a list of integers.
    """
    if isinstance(validation_freq, (list, tuple, set)) and all(map(is_integer, validation_freq)):
        return lambda epoch: epoch + 1 in validation_freq
    if is_integer(validation_freq):
        check_positive(validation_freq=validation_freq)
        return lambda epoch: (epoch + 1) % validation_freq == 0
    raise ValueError(
        "Expected `validation_freq` to be a list or int. "
        f"Received: validation_freq={validation_freq!r} of the type {type(validation_freq)}."
    )


def check_profile(profile: Any, strategy: Strategy) -> None:
    """Checks that `profile` is a bool, and that the strategy's steps can be profiled.

    Raises:
        ValueError: If `profile` is no bool, or True with asynchronous parameter servers.
    """
    if not isinstance(profile, bool):
        raise ValueError(f"`profile` must be True or False. Received: {profile!r}")
    if profile and isinstance(strategy, ParameterServer):
        raise ValueError(
            "`profile=True` needs replicas that take each step together; the workers of the "
            "strategy 'parameter_server' take steps at any time. Leave `profile` out: "
            "`trainer.report()` has the times of the training without it."
        )


def check_shuffle(shuffle: Any) -> None:
    """Checks that `shuffle` is True, False, None or "batch".

    Raises:
        ValueError: If it is something else.
    """
    if shuffle != "batch" and shuffle not in (True, False, None):
        raise ValueError(f"`shuffle` must be True, False or 'batch'. Received: {shuffle!r}")


def check_callbacks(callbacks: Any) -> None:
    """Checks that `callbacks` contains only callbacks.

    As in Keras, a callback need not be of the class `keras.callbacks.Callback`, but it must have a
    method `set_model`.

    Raises:
        ValueError: If one of `callbacks` is no callback, or a `TrainingCallback` with hooks that
            would never be called.
    """
    if callbacks is None or isinstance(callbacks, keras.callbacks.CallbackList):
        return
    for callback in keras.tree.flatten(callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            hint = " (the class; call it to make one)" if isinstance(callback, type) else ""
            raise ValueError(
                "`callbacks` must be a list of keras.callbacks.Callback objects. "
                f"Received: {shown(callback)}{hint}"
            )
        if isinstance(callback, TrainingCallback):
            _check_hooks(callback)
        warn_of_misspelled_hooks(callback)


def _check_hooks(callback: TrainingCallback) -> None:
    """Checks that a callback has the hook without which its others are never called."""
    defined = [hook for hook in ("on_due", "steps_until_due") if callback.defines(hook)]
    if defined and not callback.defines("is_due"):
        alike = closest_name("is_due", set(dir(callback)) - set(dir(TrainingCallback)))
        raise ValueError(
            f"`{type(callback).__name__}` defines `{defined[0]}`, but not `is_due`: so it is never "
            "called when it is due" + (f". Is `{alike}` misspelled?" if alike else ".")
        )


def check_class_weight(class_weight: Any) -> None:
    """Checks that `class_weight` maps classes to weights, or is None.

    Raises:
        ValueError: If `class_weight` is not a dict from integers (classes) to numbers (weights).
    """
    if class_weight is None:
        return
    items: Iterable[Any] = class_weight.items() if isinstance(class_weight, Mapping) else [()]
    for item in items:
        try:
            label, weight = item
            float(weight)
            if int(label) != label:
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(
                "`class_weight` must be a dict from classes, which are integers, to their "
                f"weights, such as {{0: 1.0, 1: 2.5}}. Received: {shown(class_weight)}"
            ) from None


def require_targets(model: keras.Model, spec: Any) -> None:
    """Checks that a batch has targets, if the model was compiled with a loss that needs targets.

    The check is done only if one loss was given for all outputs, and the model does not override
    `compute_loss`. Otherwise it is not certain that the loss needs targets.

    Args:
        model: The compiled model, whose `train_step` and `test_step` are Keras' own.
        spec: The structure of a batch, with or without targets.

    Raises:
        ValueError: If the batch has no targets for the loss.
    """
    loss = given_to_compile(model).loss
    if overrides(model, "compute_loss") or not (isinstance(loss, str) or callable(loss)):
        return
    if keras.utils.unpack_x_y_sample_weight(spec)[1] is None:
        raise ValueError(
            f"`y` is missing: the model was compiled with loss={name_of_loss(loss)}, which "
            "compares with targets. Pass `y` with arrays; data sets and generators yield (x, y)."
        )


def name_of_loss(loss: Any) -> str:
    """Returns how a user knows a loss that was given to `compile`."""
    if isinstance(loss, str):
        return repr(loss)
    return str(getattr(loss, "__name__", type(loss).__name__))


def check_takes_no_targets(batch_size: Any) -> None:
    """Checks that the second argument of `predict`, its batch size, is not meant as `y`.

    Raises:
        ValueError: If it is data.
    """
    is_array = isinstance(getattr(batch_size, "shape", None), tuple) and batch_size.shape
    if is_array or isinstance(batch_size, (list, tuple)):
        raise ValueError(
            "`predict` takes no `y`: its second argument is `batch_size`. Received: "
            f"{shown(batch_size)}"
        )


def require_own_weights(model: keras.Model, strategy: Strategy) -> None:
    """Raises an error if the weights of a TFSMLayer would be trained on several replicas.

    The layer runs a graph that was loaded from a file, and this graph reads the variables that were
    made when it was loaded, on all replicas.

    Args:
        model: The model.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.

    Raises:
        ValueError: If a TFSMLayer of the model has trainable weights, and there are several
            replicas.
    """
    if strategy.num_replicas == 1:
        return
    for layer in all_layers(model):
        if isinstance(layer, keras.layers.TFSMLayer) and layer.trainable_weights:
            raise ValueError(
                f"`model` has the layer {layer.name!r}, a keras.layers.TFSMLayer whose weights are "
                "to be trained. Its graph was loaded from a file, and cannot be trained on several "
                "replicas. Set `trainable = False` for the layer before `compile`, build the "
                "layers anew and load their weights, or train on one device."
            )
