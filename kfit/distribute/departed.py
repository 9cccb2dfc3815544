"""Remembers what a model has owned during a call, so that it is found after it has left the model.

A hook (a method of a callback) may compile the model with another optimizer or other metrics, or
replace a layer. What leaves the model stays on the strategy's devices until the call ends, since
the hooks may still use it. Then it must be taken back, as the program may use it afterwards.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.owned import Owned
from kfit.distribute.variable_values import is_per_replica


class Departed:
    """The variables and optimizers that a model has owned during the present call.

    Nothing is kept alive by it, with one exception: with several workers, variables that have a
    value for each replica, such as those of metrics, are kept until the call ends. All workers must
    take part in their sums, and Python may free an object on one worker sooner than on another.

    Args:
        num_workers: The number of tasks (processes) that train together.
    """

    def __init__(self, num_workers: int) -> None:
        self._num_workers = num_workers
        self._variables: dict[int, weakref.ref[Any]] = {}
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._summed: dict[int, keras.Variable] = {}
        self._plain: dict[int, tuple[weakref.ref[Any], tf.Variable]] = {}

    def note(self, owned: Owned) -> None:
        """Notes what the model owns now.

        Args:
            owned: The variables and optimizers, in the same order on all workers.
        """
        _note(owned.variables, self._variables)
        _note(owned.optimizers, self._optimizers)
        if self._num_workers > 1:
            self._summed.update({id(v): v for v in owned.variables if is_per_replica(v)})

    def joined(self, owned: Owned) -> Owned:
        """Returns what the model owns now, followed by what it has owned and is still alive.

        Args:
            owned: The variables and optimizers that the model owns now.
        """
        optimizers = _joined(owned.optimizers, self._optimizers)
        variables = _joined(owned.variables, self._variables)
        known = {id(variable) for variable in variables}
        for optimizer in optimizers[len(owned.optimizers) :]:
            made = [variable for variable in optimizer.variables if id(variable) not in known]
            known.update(map(id, made))
            variables.extend(made)
        return Owned(variables, optimizers)

    def keep_plain(self, variable: keras.Variable, plain: tf.Variable) -> None:
        """Keeps the ordinary `tf.Variable` of a variable that has left, as long as that lives.

        Args:
            variable: The Keras variable, whose `tf.Variable` is on the strategy's devices.
            plain: The ordinary one, which will be put back.
        """
        key = id(variable)
        gone = weakref.ref(variable, lambda _: self._plain.pop(key, None))
        self._plain[key] = gone, plain

    def plain_of(self, variable: keras.Variable) -> tf.Variable | None:
        """Returns what `keep_plain` has kept for a variable; None if it has kept nothing."""
        _, plain = self._plain.get(id(variable), (None, None))
        return plain

    def clear(self) -> None:
        """Forgets everything, at the end of the call."""
        for table in (self._variables, self._optimizers, self._summed, self._plain):
            table.clear()


def _note(found: Iterable[Any], noted: dict[int, weakref.ref[Any]]) -> None:
    for each in found:
        known = noted.get(id(each))
        if known is None or known() is not each:
            # A new object may have the id of a freed one, but has a place of its own in the order.
            noted.pop(id(each), None)
            noted[id(each)] = weakref.ref(each)


def _joined(owned: list[Any], noted: dict[int, weakref.ref[Any]]) -> list[Any]:
    known = {id(each) for each in owned}
    alive = [reference() for reference in list(noted.values())]
    return [*owned, *(each for each in alive if each is not None and id(each) not in known)]
