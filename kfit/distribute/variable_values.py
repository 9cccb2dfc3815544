"""The values of variables, taken while they are on the devices, and given back.

A value that is taken is a reference: TensorFlow shares the buffer and copies it when the variable
is next written. So taking all of a model's state costs the time of walking through its variables.
From the memory of a GPU or a TPU it is copied to the host's, which costs the time of that.

Most variables are equal on all replicas and have one value. What each replica adds up by itself
(metrics, `synchronization="on_read"`) has one value a replica, along a first axis. Given back to
another number of replicas it is only the total that can stay the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.variables import tf_variable

Variable: TypeAlias = keras.Variable | tf.Variable
"""Keras' own, or one that a program made of TensorFlow's."""


def is_per_replica(variable: Variable) -> bool:
    """Whether each replica has a value of its own."""
    return isinstance(variable, keras.Variable) and variable.synchronization == "on_read"


def get_values(variables: Sequence[Variable], strategy: Strategy) -> list[Any]:
    """The values of variables. A collective where workers have values of their own.

    Args:
        variables: Variables; all tasks pass the same.
        strategy: The adapter.

    Returns:
        A tensor or array for each, of the variable's shape, or of shape `(replicas, *shape)`.
    """
    own = [v for v in variables if is_per_replica(v)]
    # Float64 holds every float32, and every whole number that a metric counts up to.
    rows = [
        [np.asarray(_read(_copies(v, strategy)[replica]), "float64").ravel() for v in own]
        for replica in range(strategy.num_local_replicas)
    ]
    row = np.concatenate([part for parts in rows for part in parts]) if own else np.zeros(0)
    table = strategy.host_collectives.all_gather(row) if own else row
    table = table.reshape(strategy.num_replicas, -1)
    values: list[Any] = []
    column = 0
    for variable in variables:
        if not is_per_replica(variable):
            values.append(_on_host(_read(_copies(variable, strategy)[0])))
            continue
        size = int(np.prod(variable.shape, dtype=int))
        part = table[:, column : column + size].reshape(-1, *variable.shape)
        values.append(part.astype(_dtype(variable)))
        column += size
    return values


def set_values(variables: Sequence[Variable], values: Sequence[Any], strategy: Strategy) -> None:
    """Gives variables the values that `take` took, on any number of replicas.

    Args:
        variables: The variables, in the same order.
        values: Their values.
        strategy: The adapter.
    """
    for variable, value in zip(variables, values, strict=True):
        copies = _copies(variable, strategy)
        if not is_per_replica(variable):
            for copy in copies:
                copy.assign(value)
            continue
        first = strategy.first_local_replica
        parts = _for_replicas(variable, np.asarray(value), strategy.num_replicas)
        for copy, part in zip(copies, parts[first : first + len(copies)], strict=True):
            copy.assign(part)


def total_of_task(variable: keras.Variable, strategy: Strategy) -> Any:
    """What this task's replicas have of a variable of which each has a value; no collective."""
    values = np.stack([np.asarray(_read(copy)) for copy in _copies(variable, strategy)])
    return _for_replicas(variable, values, 1)[0]


def _for_replicas(variable: keras.Variable, values: np.ndarray, replicas: int) -> np.ndarray:
    if len(values) == replicas:
        return values
    spread = np.zeros((replicas, *values.shape[1:]), values.dtype)
    if variable.aggregation == "mean":
        spread[:] = values.mean(axis=0)
    elif variable.aggregation == "sum":
        spread[0] = values.sum(axis=0)
    else:
        spread[:] = values[0]
    return spread


def _copies(variable: Variable, strategy: Strategy) -> tuple[Any, ...]:
    """The `tf.Variable`s of this task's replicas."""
    value = tf_variable(variable) if isinstance(variable, keras.Variable) else variable
    return strategy.local_results(value)


def _read(copy: Any) -> Any:
    """The value of a `tf.Variable`, or of one in shards."""
    return copy.read_value() if isinstance(copy, tf.Variable) else tf.convert_to_tensor(copy)


def _on_host(value: tf.Tensor) -> tf.Tensor:
    """The value where the host's memory holds it: an accelerator has none to spare for it.

    A TPU moreover writes to the buffers of variables in place, whoever refers to them.
    """
    if "CPU" in value.device.upper():
        return value
    with tf.device("CPU:0"):
        return tf.identity(value)


def _dtype(variable: keras.Variable) -> Any:
    return tf.as_dtype(variable.dtype).as_numpy_dtype
