"""The `tf.Variable` inside a Keras variable."""

from __future__ import annotations

import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.internals.private import imported, uses

RESOURCE_VARIABLE: Any = imported(
    "tensorflow.python.ops.resource_variable_ops.ResourceVariable",
    because="`tf.Variable` is a name only: this is the class of those that are made",
)

in_stateless_scope: Any = imported(
    "keras.src.backend.common.stateless_scope.in_stateless_scope",
    because="no public call tells whether a `keras.StatelessScope` is open",
)


@uses("keras.Variable._value", because="`Variable.value` may be cast, and another in some scopes")
def tf_variable(variable: keras.Variable) -> Any:
    """Returns the `tf.Variable` inside a Keras variable; None if it is not made yet.

    On several devices it is TensorFlow's distributed variable, with a copy on each device.
    """
    return variable._value


@uses("keras.Variable._value", because="`Variable.value` cannot be set")
def set_tf_variable(variable: keras.Variable, inside: Any) -> None:
    """Replaces the `tf.Variable` inside a Keras variable by another one.

    It is called when a model's variables are moved to the devices of a strategy, and when they are
    moved back.

    Args:
        variable: The Keras variable.
        inside: The other `tf.Variable`, of the same shape and dtype.
    """
    variable._value = inside


@uses("keras.Variable._initialize", because="no public method makes the variable inside anew")
def make_tf_variable(variable: keras.Variable, value: Any) -> None:
    """Makes a new `tf.Variable` for a Keras variable, in place of the one that is inside.

    It is called in the scope of a strategy, so that the new variable is on the strategy's devices.

    Args:
        variable: The Keras variable.
        value: The initial value of the new `tf.Variable`.
    """
    variable._initialize(value)


_extended: dict[tuple[type, str], type] = {}
"""Subclasses of TensorFlow's classes with other methods, by the class and what they are for."""


def _extend(inside: Any, purpose: str, methods: dict[str, Any]) -> None:
    """Replaces the class of a TensorFlow variable by a subclass with other methods."""
    kind = type(inside)
    if (kind, purpose) not in _extended:
        _extended[kind, purpose] = type(
            kind.__name__, (kind,), {**methods, "__module__": kind.__module__}
        )
    inside.__class__ = _extended[kind, purpose]


def take_as_number(inside: Any) -> None:
    """Makes `float`, `int` and NumPy's functions work on a variable that is on several devices.

    `float` and `int` work on a `tf.Variable` on one device, but TensorFlow's classes of distributed
    variables lack `__float__` and `__int__`, which Keras' `float(optimizer.learning_rate)` needs.
    The `__array__` of those with a value for each replica returns a tensor, which NumPy refuses.
    The class of the object is replaced by a subclass that has these methods.

    Args:
        inside: The TensorFlow variable; a variable on one device is not changed.
    """
    is_distributed = isinstance(inside, tf.distribute.DistributedValues)
    if is_distributed and not hasattr(type(inside), "__float__"):
        methods = {"__float__": _as_float, "__int__": _as_int, "__array__": _as_array}
        _extend(inside, "number", methods)


def _as_float(inside: Any) -> float:
    return float(inside.numpy())


def _as_int(inside: Any) -> int:
    return int(inside.numpy())


def _as_array(inside: Any, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
    return np.array(inside.numpy(), dtype)


def give_total_to_first_copy(inside: Any, *, has_first: bool) -> None:
    """Makes the first replica's copy of a variable hold what is assigned to the whole variable.

    The value of the variable is the sum of its copies. TensorFlow would give each of R copies 1 / R
    of what is assigned outside of the replicas. For an integer this loses the remainder, and the
    initial value would even count R times.

    Args:
        inside: A TensorFlow variable on several devices, just made, with the aggregation "sum" and
            the synchronization "on_read".
        has_first: Whether the first one of this task's copies is that of the very first replica.
    """
    original = type(inside).assign

    def assign(self: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        is_in_strategy = tf.distribute.get_strategy() is self.distribute_strategy
        if is_in_strategy and not tf.distribute.in_cross_replica_context():
            return original(self, value, *args, **kwargs)  # on a replica
        first, *others = self.distribute_strategy.experimental_local_results(self)
        value = tf.cast(tf.convert_to_tensor(value), self.dtype)
        first.assign(value if has_first else tf.zeros_like(value))
        for other in others:
            other.assign(tf.zeros_like(value))
        return self

    _extend(inside, f"total {has_first}", {"assign": assign})
    inside.assign(inside.distribute_strategy.experimental_local_results(inside)[0].read_value())


_CONTAINER = ("tf.Variable.handle._distributed_container", "tf.Variable._distributed_container")
_OF_A_COPY = "the copy of one replica does not tell in public that it is one"


@uses(*_CONTAINER, because=_OF_A_COPY)
def is_copy_of_a_replica(variable: tf.Variable) -> bool:
    """Returns whether a `tf.Variable` is one replica's copy of a distributed variable."""
    return hasattr(_with_container(variable), "_distributed_container")


@uses(*_CONTAINER, because=_OF_A_COPY)
def whole_of_copy(variable: tf.Variable) -> Any:
    """Returns the distributed variable of which a `tf.Variable` is one replica's copy."""
    return _with_container(variable)._distributed_container()


@uses(*_CONTAINER, because=_OF_A_COPY)
def set_copy_of(variable: tf.Variable, whole: Any) -> None:
    """Declares that a `tf.Variable` is, or no longer is, a replica's copy of a distributed one.

    TensorFlow declares it for good when it makes the distributed variable. But a variable can be a
    copy of several ones, of different strategies, at different times.

    Args:
        variable: The variable.
        whole: The distributed variable; None if `variable` is an ordinary variable now.
    """
    holder = _with_container(variable)
    if whole is not None:
        holder._distributed_container = weakref.ref(whole)
    elif hasattr(holder, "_distributed_container"):
        del holder._distributed_container


def _with_container(variable: tf.Variable) -> Any:
    """Returns what refers to the whole: the handle, or a variable that was made in a graph."""
    return variable.handle if isinstance(variable, RESOURCE_VARIABLE) else variable


@uses(
    "tf.train.ExponentialMovingAverage._averages",
    because="`average` needs the variables that were averaged, which may be of any object",
)
def averages_of(average: tf.train.ExponentialMovingAverage) -> list[tf.Variable]:
    """Returns the variables that hold TensorFlow's moving averages, in the order of creation."""
    return list(average._averages.values())
