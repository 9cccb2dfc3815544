"""What of a model a step trains: all its graphs train what the first one after `compile` does.

In Keras what is frozen or thawed counts from the next `compile` on, since a step that has been
traced stays as it is. kfit traces more often: for a last batch of another size, where a callback
watches batches, on another strategy. So each later graph is traced with what was trained at first.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.inputs import BatchLayout
from kfit.internals.layers import all_layers
from kfit.internals.models import loss_tracker

Step: TypeAlias = Callable[[Any, BatchLayout], Any]
Flags: TypeAlias = dict[int, bool]

_KEPT = "_kfit_trained"


@dataclass(frozen=True)
class _First:
    """What was trained at first, and by what; which a later `compile` lets go of."""

    made_for: Any
    flags: Flags


def trains_as_at_first(model: keras.Model, step: Step) -> Step:
    """A training step whose graphs all train the same; what runs eagerly trains what is thawed.

    Args:
        model: The model.
        step: Takes an element and its layout.
    """

    @tf.autograph.experimental.do_not_convert
    def traced(element: Any, layout: BatchLayout) -> Any:
        if tf.executing_eagerly():
            return step(element, layout)
        remember_trained(model)
        with _trained_as(model, _kept(model)):
            return step(element, layout)

    return traced


def remember_trained(model: keras.Model) -> None:
    """Notes what is trained from now until the next `compile`, if that is not known yet."""
    if not _kept(model) and not model.run_eagerly:
        # Past Keras' tracking of attributes: this is no part of the model.
        object.__setattr__(model, _KEPT, _First(_made_for(model), _flags(model)))


def warn_of_thawed(model: keras.Model) -> None:
    """Warns, before a step is taken, of what was frozen or thawed and does not count yet."""
    first, now = _kept(model), _flags(model)
    changed = [] if model.run_eagerly else _changed(model, {**now, **first}, now)
    if not changed:
        return
    named = [part.path if isinstance(part, keras.Variable) else part.name for part in changed]
    layers = ", ".join(f"{name!r}" for name in named[:3]) + (", ..." if len(named) > 3 else "")
    warnings.warn(
        f"`trainable` of {layers} was changed after the first step since `compile`. That counts "
        "from the next `compile` on; until then what was trained before is. Call `compile` again.",
        stacklevel=4,
    )


def _kept(model: keras.Model) -> Flags:
    """What was trained at first; empty where all graphs are new."""
    first: _First | None = getattr(model, _KEPT, None)
    return first.flags if first is not None and first.made_for == _made_for(model) else {}


def _made_for(model: keras.Model) -> Any:
    # Private: `compile` makes a new loss tracker each time; no public attribute tells of it.
    held = loss_tracker(model), getattr(model, "optimizer", None)
    references = [None if part is None else weakref.ref(part) for part in held]
    return references, [id(variable) for variable in model.variables]


def _parts(model: keras.Model) -> list[Any]:
    """All layers, and then all variables, that may be trained or not."""
    return [*all_layers(model), *model.variables]


def _flags(model: keras.Model) -> Flags:
    return {id(part): part.trainable for part in _parts(model)}


def _changed(model: keras.Model, first: Flags, now: Flags) -> list[Any]:
    return [part for part in _parts(model) if first[id(part)] != now[id(part)]]


@contextmanager
def _trained_as(model: keras.Model, first: Flags) -> Iterator[None]:
    now = _flags(model)
    wanted = {part: first.get(part, trainable) for part, trainable in now.items()}
    if wanted == now:
        yield
        return
    try:
        _set(model, wanted)
        yield
    finally:
        _set(model, now)


def _set(model: keras.Model, flags: Flags) -> None:
    # A layer sets those within it and its variables, which have their turn after it.
    for part in _parts(model):
        if part.trainable != flags[id(part)]:
            part.trainable = flags[id(part)]
