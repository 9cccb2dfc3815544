"""Makes all graphs of a model train the same variables until the next call of `compile`.

In Keras, freezing or thawing a layer takes effect at the next `compile` or
`make_train_function(force=True)`, because a step that was traced does not change. But kfit traces a
step several times: for a last batch of another size, when a callback watches batches, or on another
strategy. So kfit records the `trainable` flags when the first graph is traced, and traces each
later graph with the recorded flags.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import BatchLayout
from kfit.internals.keras_functions import mark_of_function
from kfit.internals.layers import all_layers
from kfit.internals.models import last_compile, runs_eagerly

Step: TypeAlias = Callable[[Any, BatchLayout], Any]
Flags: TypeAlias = dict[int, bool]

_KEPT = "_kfit_trained"


@dataclass(frozen=True)
class _First:
    """The `trainable` flags that were recorded when the model's first graph was traced.

    Attributes:
        made_for: A value that identifies the `compile`, and the function of Keras' that it would
            have traced. After a new `compile` or `make_train_function(force=True)`, `_made_for`
            returns another value.
        variables: The model's variables. The flags are valid until one of them is replaced.
        flags: `trainable` of each layer and variable, by its id.
    """

    made_for: Any
    variables: list[weakref.ref[keras.Variable]]
    flags: Flags


def trains_as_at_first(model: keras.Model, step: Step) -> Step:
    """Wraps a training step so that all its graphs train the variables that the first graph trains.

    If the step runs eagerly, the current `trainable` flags apply.

    Args:
        model: The model.
        step: A function `step(element, layout)` that runs the training step on all replicas.

    Returns:
        The function to call instead of `step`.
    """

    @tf.autograph.experimental.do_not_convert
    def traced(element: Any, layout: BatchLayout) -> Any:
        # A model that runs eagerly is only traced to see what its step makes.
        if tf.executing_eagerly() or runs_eagerly(model):
            return step(element, layout)
        is_first = not _kept(model)
        remember_trained(model)
        first = _kept(model)
        with _trained_as(model, first):
            try:
                return step(element, layout)
            except Exception:
                if is_first:  # no graph trains anything by these flags
                    vars(model).pop(_KEPT, None)
                raise
            finally:
                # What the step itself has made is no addition of the program's.
                first.update({**flags_of(model), **first})

    return traced


def remember_trained(model: keras.Model) -> None:
    """Records all `trainable` flags of a model, which then hold until the next `compile`.

    Called when the first graph is traced, and after training. Nothing changes if the flags are
    recorded already, or if the model runs eagerly.
    """
    if not _kept(model) and not runs_eagerly(model):
        # Bypasses Keras' attribute tracking, because this value is not a part of the model.
        variables = [weakref.ref(variable) for variable in model.variables]
        object.__setattr__(model, _KEPT, _First(_made_for(model), variables, flags_of(model)))


def warn_of_thawed(model: keras.Model) -> None:
    """Warns if layers were frozen or thawed after the first training step since `compile`.

    Such a change has no effect before the next `compile`. Called at the beginning of training.
    There is no warning if the model runs eagerly, since the change takes effect at once then.
    """
    first, now = _kept(model), flags_of(model)
    changed = [] if runs_eagerly(model) else _changed(model, {**now, **first}, now)
    if not changed:
        return
    named = [part.path if isinstance(part, keras.Variable) else part.name for part in changed]
    layers = ", ".join(f"{name!r}" for name in named[:3]) + (", ..." if len(named) > 3 else "")
    warn_user(
        f"`trainable` of {layers} was changed after the first step since `compile`. This takes "
        "effect at the next `compile`; until then the same variables are trained as before. Call "
        "`compile` again."
    )


class TrainableFlags:
    """The `trainable` flags of a model as a part of the state of one `fit`.

    Hooks may freeze and thaw layers. A training that resumes, or a `fit` that an earlier run has
    finished, does not call these hooks again. So a snapshot holds the flags that differ from those
    at the beginning of the `fit`, and the flags by which the steps are traced (see above).

    Args:
        model: The model, when the `fit` begins.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._begun = flags_of(model)

    def state_dict(self) -> dict[str, Any]:
        """Returns the flags that differ from those at the beginning.

        Returns:
            The number of layers and variables ("parts"), and for each that differs its number and
            its flag: now ("changed"), and as the steps train it ("trained").
        """
        parts, first = _parts(self._model), _kept(self._model)
        now = [part.trainable for part in parts]
        begun = [self._begun.get(id(part), flag) for part, flag in zip(parts, now, strict=True)]
        trained = [first.get(id(part), flag) for part, flag in zip(parts, begun, strict=True)]
        return {
            "parts": len(parts),
            "changed": _differing(now, begun),
            "trained": _differing(trained, begun),
        }

    @contextmanager
    def as_trained(self, state: dict[str, Any] | None) -> Iterator[None]:
        """Context with the flags by which the steps before a snapshot were traced.

        An optimizer that is built in it has slots for what those steps trained. A hook before the
        first step may have decided that, and is not called again.

        Args:
            state: As for `load_state_dict`.
        """
        parts = _parts(self._model)
        now = {id(part): part.trainable for part in parts}
        if state is not None and state["parts"] == len(parts):
            _set(self._model, {**now, **self._begun, **_by_id(parts, state["trained"])})
        try:
            yield
        finally:
            _set(self._model, now)

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Sets the flags to those of a snapshot, and lets later steps train what its steps trained.

        Args:
            state: What `state_dict` has returned; None if the snapshot does not have it. The flags
                stay as they are if the model has other parts now.
        """
        parts = _parts(self._model)
        if state is None or state["parts"] != len(parts):
            return
        begun = {id(part): self._begun.get(id(part), part.trainable) for part in parts}
        if not _kept(self._model) and state["trained"]:
            _set(self._model, {**begun, **_by_id(parts, state["trained"])})
        remember_trained(self._model)
        changed = _by_id(parts, state["changed"])
        _set(self._model, {**begun, **changed})
        # In a process that goes on after an error, the hooks may have changed them before.
        self._begun.update((part, not flag) for part, flag in changed.items())


def _differing(now: list[bool], begun: list[bool]) -> list[list[Any]]:
    both = enumerate(zip(now, begun, strict=True))
    return [[number, flag] for number, (flag, before) in both if flag != before]


def _by_id(parts: list[Any], flags: list[list[Any]]) -> Flags:
    return {id(parts[number]): flag for number, flag in flags if number < len(parts)}


def _kept(model: keras.Model) -> Flags:
    """Returns the `trainable` flags that are recorded for the model, by the ids of its parts.

    The result is empty if no flags were recorded since the last `compile` or
    `make_train_function(force=True)`, or if a variable of the model or its optimizer was replaced
    since they were recorded. It has no flags of variables that were added since.
    """
    first: _First | None = getattr(model, _KEPT, None)
    if first is None or first.made_for != _made_for(model):
        return {}
    present = {id(variable) for variable in model.variables}
    is_whole = all(id(variable()) in present for variable in first.variables)
    return first.flags if is_whole else {}


def _made_for(model: keras.Model) -> Any:
    return last_compile(model), mark_of_function(model, "train_step")


def _parts(model: keras.Model) -> list[Any]:
    """Returns all layers of the model, followed by all its variables."""
    return [*all_layers(model), *model.variables]


def flags_of(model: keras.Model) -> Flags:
    """Returns `trainable` of each layer and each variable of a model, by its id."""
    return {id(part): part.trainable for part in _parts(model)}


def _changed(model: keras.Model, first: Flags, now: Flags) -> list[Any]:
    return [part for part in _parts(model) if first[id(part)] != now[id(part)]]


@contextmanager
def _trained_as(model: keras.Model, first: Flags) -> Iterator[None]:
    """Context in which a step is traced with the flags of the first graph.

    Variables that the program has added since are not trained: the optimizer does not know them,
    and a graph that Keras has kept does not, either. A warning names them.

    Args:
        model: The model.
        first: The flags of the first graph.
    """
    now = flags_of(model)
    added = [v for v in model.variables if v.trainable and id(v) not in first]
    if added:
        names = ", ".join(repr(variable.path) for variable in added[:3])
        warn_user(
            f"{names}{', ...' if len(added) > 3 else ''} came to the model after the first step "
            "since `compile`, and the optimizer does not know them. They are not trained before "
            "the next `compile`. Call `compile` again."
        )
    wanted = {part: first.get(part, trainable) for part, trainable in now.items()}
    wanted.update((id(variable), False) for variable in added)
    if wanted == now:
        yield
        return
    try:
        _set(model, wanted)
        yield
    finally:
        _set(model, {**flags_of(model), **now})


def _set(model: keras.Model, flags: Flags) -> None:
    # Setting a layer's flag also sets the flags of its sublayers and variables. These come later in
    # `_parts`, so their own flags are set after it.
    for part in _parts(model):
        if part.trainable != flags[id(part)]:
            part.trainable = flags[id(part)]
