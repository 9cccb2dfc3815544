"""Makes a model's ordinary variables the first replica's copies of those on several devices.

A function that was traced before a call of `fit` has captured the ordinary `tf.Variable`: a
`tf.function` around the model, Keras' own `predict`, the `map` of a data set that calls the model.
One that is traced in a hook captures the copy of the first replica. If the two are one variable,
both functions always see the present value, in hooks and after the call. What such a function
assigns in a hook is written to the first copy alone, so the other replicas get it afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf


class FirstCopies:
    """Has TensorFlow take a given variable in place of the first copy that it makes.

    It is possible if the variable is on the device of the first replica. On other devices, such as
    those of a TPU or of parameter servers, the first copy is another variable.
    """

    def __init__(self) -> None:
        self._given: tf.Variable | None = None

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Context in which `give` has an effect; entered before the scope of the strategy."""
        with tf.variable_creator_scope(self._create):
            yield

    def give(self, plain: tf.Variable) -> None:
        """Offers a variable as the first copy of the variable that is made next.

        Args:
            plain: An ordinary variable, of the same shape and dtype. It gets the initial value.
        """
        self._given = plain

    def _create(self, next_creator: Callable[..., tf.Variable], **settings: Any) -> tf.Variable:
        made, given = next_creator(**settings), self._given
        if given is None or given.dtype != made.dtype:
            # Of another type are variables by which workers send values (`initial_values.py`).
            return made
        self._given = None
        if not may_be_one(given, made):
            return made
        given.assign(made.read_value())
        return given


def followed_by(spread: Callable[[], None]) -> Callable[[Any], Any]:
    """Returns what replaces the call of `tf.function`s, so that `spread` is called after each.

    It is called after functions of the program, not of kfit, and not while a graph is traced.

    Args:
        spread: Gives the first copies' values to the other replicas, if this thread may do so.
    """

    def replaced(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(function, *args, **kwargs)
            if tf.executing_eagerly() and not _is_of_kfit(function):
                spread()
            return result

        return call

    return replaced


def _is_of_kfit(function: Any) -> bool:
    made_of = function.python_function
    code = getattr(made_of, "func", made_of)  # of a `functools.partial`
    return str(getattr(code, "__module__", "")).partition(".")[0] == "kfit"


def may_be_one(plain: Any, copy: Any) -> bool:
    """Returns whether an ordinary variable can be used in place of a replica's copy, or vice versa.

    Args:
        plain: An ordinary variable.
        copy: A copy of the first replica.
    """
    both = plain, copy
    are_variables = all(isinstance(each, tf.Variable) for each in both)
    are_several = any(isinstance(each, tf.distribute.DistributedValues) for each in both)
    return are_variables and not are_several and plain.device == copy.device
