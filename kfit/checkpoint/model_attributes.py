"""Saves and restores what Python code in a model's steps changes, if the steps run eagerly.

In a compiled step Python code runs only while the step is traced, and its state is that of the
program. But with `run_eagerly=True` a `train_step` or `call` may count, draw and remember in Python
attributes, which then decide what the next steps compute, as variables do.

The model, its layers, metrics and optimizers, and its losses are searched. Of each, the state is in

- the attributes that the program's own classes name, or that no class of Keras names;
- objects of the program in other attributes, such as an activation with a `__call__`;
- variables that the code refers to, such as a counter at the top of the file.

Variables, and random generators of TensorFlow and Keras, are left out: `state.py` lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint.callback_attributes import is_of_library
from kfit.checkpoint.model_settings import LIBRARIES, ModelSettings
from kfit.checkpoint.state import belongings
from kfit.distribute.owned import owned_metrics, owned_optimizers
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.layers import all_layers
from kfit.internals.models import given_to_compile, runs_eagerly
from kfit.objects import Attributes
from kfit.objects.attributes import listed
from kfit.objects.fields import has_fields
from kfit.objects.keras_parts import OF_TRAINING, names_used_by
from kfit.objects.names import found_in
from kfit.objects.plain_objects import OF_KERAS, is_function, is_own

State = dict[str, Any]

_SAVED_ELSEWHERE = (
    *OF_KERAS,
    *(keras.Variable, tf.Variable, keras.random.SeedGenerator, tf.random.Generator),
)


class ModelAttributes:
    """The Python state of one model, which can be saved in snapshots and restored.

    There is none before `begin`, and none of a model whose steps are compiled. Settings that hooks
    change are not saved, but told (`model_settings.py`).

    Args:
        model: The model.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._parts: dict[str, Attributes] = {}
        self._settings: ModelSettings | None = None
        self._has_warned = False

    def begin(self) -> None:
        """Records the state: what changes from now on is saved.

        It is called before the first step of a `fit`, when the model is built.
        """
        parts = list(parts_of_model(self._model))
        looks_of = {id(part): _looks(part) for part in parts} if runs_eagerly(self._model) else {}

        def is_kept(part: Any, name: str) -> bool:
            looks = looks_of.get(id(part))
            return looks is not None and looks(name)

        self._settings = ModelSettings([(label_of(part), part) for part in parts], is_kept)
        if not looks_of:
            return
        foreign = belongings(self._model) | set(map(id, parts))
        for number, part in enumerate(parts):
            looks = looks_of.get(id(part))
            if looks is not None:
                name = f"{number} {label_of(part)}"
                self._parts[name] = Attributes(part, looks, foreign, besides=_SAVED_ELSEWHERE)

    @property
    def are_kept(self) -> bool:
        """Whether there may be such state, so that a snapshot must tell of it."""
        return bool(self._parts)

    def state_dict(self, *, warn: bool = True) -> list[State]:
        """Returns what has changed, as a list with an entry for each layer and the like.

        Args:
            warn: Whether a warning names what has changed and cannot be saved. It does so once.
        """
        found, unsaved = [], []
        for name, attributes in self._parts.items():
            with attributes.one_look():
                label = name.partition(" ")[2]
                unsaved += [f"{label}.{each}" for each in attributes.unsaved()]
                if state := attributes.state_dict():
                    found.append({"part": name, "attributes": state})
        if warn and unsaved and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"The state of the model is not saved whole: {listed(unsaved)} changed during "
                "training, and is not a number, string or array, or a plain list or dict of "
                "these. After a restart it begins as the program makes it. Keep it in such "
                "values, or in a variable (`add_weight`)."
            )
        return found

    def warn_of_settings(self) -> None:
        """Warns once of settings that hooks have changed, since a snapshot does not have them."""
        changed = [] if self._settings is None else self._settings.changed()
        if changed:
            self._settings = None
            warn_user(
                f"A callback has changed {listed(changed)} in the middle of `fit`, which is no "
                "variable and is not saved: after a restart it has the value that the program "
                "gives it, until a hook sets it again. Let the hook set it by the number of the "
                "epoch, keep it in a variable (`add_weight`), or give the callback `state_dict` "
                "and a `load_state_dict` that sets it."
            )

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Context that puts back the present state at its end, as when a step is only traced."""
        before = self.state_dict(warn=False)
        for entry in before:
            for attribute in entry["attributes"]:
                attribute.pop("process", None)  # else variables in code would stay as they are
        yield
        self.load_state_dict(before)

    def load_state_dict(self, state: list[State]) -> None:
        """Restores what a snapshot has; what it does not have becomes as it was at `begin`.

        Args:
            state: What `state_dict` returned, here or in another process.
        """
        saved = {entry["part"]: entry["attributes"] for entry in state}
        for name, attributes in self._parts.items():
            attributes.load_state_dict(saved.get(name, []))


def parts_of_model(model: keras.Model) -> Iterator[Any]:
    """Yields the objects whose code runs in a model's steps, each once, in a reproducible order."""
    given = keras.tree.flatten(list(given_to_compile(model)))
    seen: set[int] = set()
    for part in (*all_layers(model), *owned_metrics(model), *owned_optimizers(model), *given):
        if has_fields(part) and id(part) not in seen:
            seen.add(id(part))
            yield part


def label_of(part: Any) -> str:
    """Returns the name of a part of a model for messages: its own one, or that of its class."""
    return getattr(part, "__qualname__", type(part).__qualname__)


def _looks(part: Any) -> Callable[[str], bool] | None:
    """Returns a function that says which attributes of an object may hold state, by their names.

    None if no code of the program runs in the object.
    """
    kinds = type(part).__mro__
    own = [kind for kind in kinds if not is_of_library(kind, LIBRARIES)]
    given = {name for name, value in vars(part).items() if is_own(value, part)}
    if is_function(part) or not own:
        return given.__contains__ if given or found_in(part) else None
    named = {name for kind in own for name in names_used_by(kind)}
    bases = (kind for kind in kinds if is_of_library(kind, LIBRARIES))
    of_bases = {name for kind in bases for name in names_used_by(kind)} - named
    left_out = (of_bases - given) | OF_TRAINING
    # TensorFlow and kfit set attributes of layers that no class names.
    return lambda name: name not in left_out and not name.startswith(("_self_", "_kfit_"))
