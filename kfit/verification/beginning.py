"""Reads the state from which each trial run begins, and sets it again, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint.state import Entry, entries
from kfit.distribute.python_random import seed_generator_apart
from kfit.internals.randomness import (
    existing_seed_generator,
    set_seed_generator,
)
from kfit.internals.variables import tf_variable
from kfit.objects import Generators

Change = Callable[[tf.Tensor], tf.Tensor]


class KerasDraws:
    """The state of Keras' global seed generator, from which is drawn where no seed is given."""

    def __init__(self) -> None:
        self._generator = existing_seed_generator()
        self._state = None if self._generator is None else self._generator.state.numpy()

    def give_back(self) -> None:
        """Sets the generator back; where there was none, Keras makes one at the next draw."""
        set_seed_generator(self._generator)
        if self._generator is not None:
            self._generator.state.assign(self._state)


class Beginning:
    """The state of a model, its optimizers and its metrics, and of the global random generators.

    The variables must exist already, and must be ordinary variables, as they are between two calls
    of a trainer.

    Args:
        model: The model.

    Attributes:
        variables: The variables of the model, its optimizers and its metrics.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._attributes = dict(vars(model))
        self._drawn = Generators.now()
        self._draws = KerasDraws()
        # Every run must draw from one generator: a graph keeps the generator of its tracing.
        self._generator = seed_generator_apart()
        self._seed = self._generator.state.numpy()
        self.variables: list[Entry] = entries(model)
        self._values = [_read(entry.variable) for entry in self.variables]

    def give(self, change: Change | None = None) -> None:
        """Sets all variables and random generators to the state of the beginning.

        Args:
            change: A function that changes the float weights of the model, or None to set them
                unchanged.
        """
        for entry, value in zip(self.variables, self._values, strict=True):
            is_weight = change is not None and entry.part == "model" and value.dtype.is_floating
            new = change(value) if is_weight and change is not None else value
            _variable(entry.variable).assign(new)
        self._drawn.give()
        self._generator.state.assign(self._seed)
        set_seed_generator(self._generator)

    def give_back(self) -> None:
        """Sets everything as it was, the model's attributes and Keras' generator included."""
        self.give()
        self._draws.give_back()
        now = vars(self._model)
        for name in [name for name in now if name not in self._attributes]:
            object.__delattr__(self._model, name)
        for name, value in self._attributes.items():
            if now.get(name, now) is not value:
                object.__setattr__(self._model, name, value)

    def now(self) -> list[np.ndarray]:
        """Returns the present values of `variables`; bfloat16 and the like become float32."""
        return [_as_numpy(_read(entry.variable)) for entry in self.variables]


def shaken_by(epsilon: float, seed: int) -> Change:
    """Returns a function that changes each number of a tensor up or down by `epsilon` of itself."""
    draw = np.random.default_rng([seed, 7])

    def change(value: tf.Tensor) -> tf.Tensor:
        signs = draw.integers(0, 2, value.shape) * 2 - 1
        # Computed in float64: 1 + epsilon may not exist in the variable's own dtype.
        changed = tf.cast(value, tf.float64) * (1 + epsilon * signs)
        return tf.cast(changed, value.dtype)

    return change


def _variable(variable: Any) -> tf.Variable:
    return tf_variable(variable) if isinstance(variable, keras.Variable) else variable


def _read(variable: Any) -> tf.Tensor:
    return _variable(variable).read_value()


def _as_numpy(value: tf.Tensor) -> np.ndarray:
    if value.dtype.is_floating and value.dtype.size < 4:
        value = tf.cast(value, tf.float32)
    return np.asarray(value.numpy())
