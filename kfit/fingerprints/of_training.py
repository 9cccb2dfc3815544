"""The fingerprint of a whole training: its data, its model, and the arguments of `compile`."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping
from typing import Any

import keras

from kfit.distribute.owned import owned_optimizers
from kfit.fingerprints.pipelines import drawn_seed_of, of_data
from kfit.fingerprints.plain import config_of, flat, is_argument, numbers_of, plain, stable
from kfit.internals.layers import all_layers
from kfit.internals.models import compile_arguments

Values = dict[str, Any]

_HELD = "(held)"
"""A key for the numbers that an object holds, and that may be no settings of the program."""


def fingerprint_of(
    model: keras.Model,
    data: tuple[Any, Any, Any],
    validation_data: Any,
    *,
    seed: int | None,
    class_weight: Any,
    validation: Values,
) -> dict[str, Values]:
    """Describes a training before its first step, to compare it with the training of a snapshot.

    Args:
        model: The model, compiled and built.
        data: `x`, `y` and `sample_weight`, as `fit` takes them.
        validation_data: The validation data, as `fit` takes it.
        seed: The seed that was passed to `kfit.Trainer` or, if none was, the one that the program
            has passed to `keras.utils.set_random_seed`.
        class_weight: The weights of classes, as `fit` takes them.
        validation: Other values that describe the validation, such as its number of steps.

    A number that an object of the user's holds is compared as a setting if its name is that of an
    argument of the constructor. Any other one may be what a clock gave (`self.start_time`), or what
    a hook of an earlier `fit` has set (`model.current_epoch`), which an unchanged program does not
    repeat. So these are in a section of their own, "attributes", whose differences are only told.

    Returns:
        The description, which is called the fingerprint: a dict of plain values for each section,
        such as "data" or "model".
    """
    compared, attributes = _parted(
        {"model": of_model(model), **of_optimizers(model), **of_compiled(model)}
    )
    found: dict[str, Values] = {
        "data": of_data(*data),
        "seed": {"seed": seed},
        "class_weight": dict(flat(plain(class_weight or {}))),
        "validation_data": {},
        # Not sections of `compare`: they may change, with a warning.
        "drawn_seed": drawn_seed_of(data[0]),
        "attributes": attributes,
        **compared,
    }
    if validation_data is not None:
        parts = keras.utils.unpack_x_y_sample_weight(validation_data)
        found["validation_data"] = {**of_data(*parts), **plain(validation)}
    return found


def of_model(model: keras.Model, *, with_own_settings: bool = True) -> Values:
    """Describes the configuration of each layer, and how the layers are connected.

    Args:
        model: The model.
        with_own_settings: Whether settings of layers that are not Keras' own are described. They
            may be of this process only, such as its number.

    Returns:
        Plain values by name: the section "model" of a training's fingerprint, by which a snapshot
        of the same training is recognized.
    """
    found: Values = {}
    usual = {*vars(keras.Model()), "stop_training", "stop_evaluating", "stop_predicting", "built"}
    for number, layer in enumerate(all_layers(model)):
        place = _place_of(layer, number)
        found[place] = type(layer).__qualname__
        is_own = not type(layer).__module__.startswith("keras.")
        if is_own and not with_own_settings:
            continue
        config = config_of(layer).get("config", {})
        inner = config.pop("layers", None)
        if isinstance(inner, list):
            # The inner layers are in `all_layers`; this describes only how they are connected.
            names = {c["config"]["name"]: f"layer {i}" for i, c in enumerate(inner) if _named(c)}
            nodes = [c.get("inbound_nodes") for c in inner if isinstance(c, dict)]
            connections = repr(plain(_renamed(_without_forms(nodes), names))).encode()
            config = {"connections": f"#{zlib.crc32(connections):08x}"}
        if isinstance(layer, keras.layers.Lambda):
            config["function"] = layer.function
        config = _without_draws(config)
        found.update((k, v) for k, v in flat(plain(config), place) if v is not None)
        if is_own and (numbers := _numbers_in(layer, {*usual, "seed"})):
            found.update(flat(numbers, place))
    return found


def names_of_layers(model: keras.Model) -> dict[str, str]:
    """Returns the name of each layer, also of the model itself, by its name in the fingerprint."""
    return {_place_of(layer, n): layer.name for n, layer in enumerate(all_layers(model))}


def _place_of(layer: keras.Layer, number: int) -> str:
    return f"{stable(layer.name)} ({number})"


def _without_forms(nodes: Any) -> Any:
    """Returns a copy of the connections of layers without the shapes and dtypes of their tensors.

    They follow from the settings of the layers, which are described by themselves.
    """
    if isinstance(nodes, (list, tuple)):
        return [_without_forms(part) for part in nodes]
    if not isinstance(nodes, dict):
        return nodes
    if nodes.get("class_name") == "__keras_tensor__":
        return nodes["config"].get("keras_history")
    return {key: _without_forms(part) for key, part in nodes.items()}


def _without_draws(config: Any) -> Any:
    """Returns a copy of a layer's configuration without seeds and initializers, at any depth.

    Seeds may be drawn anew in each process, also by a layer in a wrapper such as TimeDistributed.
    What they and the initializers have led to is in the snapshot.
    """
    if isinstance(config, (list, tuple)):
        return [_without_draws(part) for part in config]
    if not isinstance(config, dict):
        return config
    return {
        key: _without_draws(part)
        for key, part in config.items()
        if key != "seed" and not str(key).endswith("_initializer")
    }


def _numbers_in(value: Any, besides: Collection[str]) -> Values:
    """Returns the numbers that an object holds; under `_HELD` those that may be no settings."""
    found = numbers_of(value, besides)
    held = {name: number for name, number in found.items() if not is_argument(value, name)}
    said = {name: number for name, number in found.items() if name not in held}
    return {**said, **({_HELD: held} if held else {})}


def _parted(sections: Mapping[str, Values]) -> tuple[dict[str, Values], Values]:
    """Takes the numbers that may be no settings out of sections of a fingerprint.

    Returns:
        The sections without these numbers, and the numbers: by the section and their name.
    """
    mark = f".{_HELD}"
    said = {
        section: {key: value for key, value in found.items() if mark not in key}
        for section, found in sections.items()
    }
    held = {
        f"{section}: {key.replace(mark, '')}": value
        for section, found in sections.items()
        for key, value in found.items()
        if mark in key
    }
    return said, held


def _named(config: Any) -> bool:
    return isinstance(config, dict) and "name" in config.get("config", {})


def _renamed(value: Any, names: dict[str, str]) -> Any:
    """Returns a copy of a Keras configuration in which the names of layers are replaced.

    Keras appends numbers to names of layers, which may differ although the models are equal.

    Args:
        value: The configuration, or a part of it.
        names: The new name of each layer, by its old name.
    """
    if isinstance(value, dict):
        return {key: _renamed(part, names) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_renamed(part, names) for part in value]
    return names.get(value, value) if isinstance(value, str) else value


def of_optimizers(model: keras.Model) -> dict[str, Values]:
    """Describes the classes and hyperparameters of a model's optimizers.

    Returns:
        Two sections of a training's fingerprint (the description that is compared with that of a
        snapshot): "learning_rate", and "optimizer" for all the rest.
    """
    owned = owned_optimizers(model)
    inside = {id(getattr(optimizer, "inner_optimizer", None)) for optimizer in owned}
    found: Values = {}
    for number, optimizer in enumerate(o for o in owned if id(o) not in inside):
        place = "optimizer" if number == 0 else f"optimizer {number + 1}"
        found[place] = type(optimizer).__qualname__
        config = config_of(optimizer).get("config", {})
        found.update(flat(plain({k: v for k, v in config.items() if k != "name"}), place))
    rates = {key: value for key, value in found.items() if "learning_rate" in key}
    others = {key: value for key, value in found.items() if key not in rates}
    return {"optimizer": others, "learning_rate": rates}


def of_compiled(model: keras.Model) -> dict[str, Values]:
    """Describes the losses and metrics with which a model trains.

    These are the losses and metrics that were passed to `compile`, and the `keras.losses.Loss`
    objects that are public attributes of the model.

    Returns:
        Two sections of a training's fingerprint (the description that is compared with that of a
        snapshot): "loss" and "metrics".
    """
    given = compile_arguments(model)
    losses = {name: _described(given.get(name)) for name in ("loss", "loss_weights")}
    for name, value in vars(model).items():
        if isinstance(value, keras.losses.Loss) and name != "loss" and name[0] != "_":
            losses[stable(name)] = _described(value)
    metrics = {name: _described(given.get(name)) for name in ("metrics", "weighted_metrics")}
    return {
        "loss": {k: v for k, v in flat(losses) if v is not None},
        "metrics": {k: v for k, v in flat(metrics) if v is not None},
    }


def _described(value: Any) -> Any:
    """Describes losses or metrics by plain values.

    The description of an object of a user's own class includes the object's numeric attributes.

    Args:
        value: A loss or a metric, or a dict or list of them, as given to `compile`.
    """
    if isinstance(value, dict):
        return {str(key): _described(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_described(part) for part in value]
    found = plain(value)
    is_own = isinstance(value, (keras.losses.Loss, keras.Metric))
    if is_own and not type(value).__module__.startswith("keras."):
        found = {**found, **_numbers_in(value, {"built"})}
    return found
