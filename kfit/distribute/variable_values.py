"""Reads the values of variables while they are on a strategy's devices, and assigns them again.

On a CPU, a value that is read is a reference: TensorFlow shares the buffer, and copies it when the
variable is next written. So reading a model's whole state takes only the time to iterate over its
variables. From the memory of a GPU or a TPU the values are copied to the host.

Most variables are equal on all replicas and have one value. A *per-replica* variable
(`synchronization="on_read"`), such as that of a metric, is accumulated separately by each replica.
So it has one value for each replica, along a first axis. If such values are assigned to a different
number of replicas, only their aggregate is kept: the sum, the mean or the first value, as the
variable declares.
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
"""A Keras variable, or a TensorFlow variable that the user's program made."""


def is_per_replica(variable: Variable) -> bool:
    """Returns whether each replica has its own value of a variable, such as that of a metric."""
    return isinstance(variable, keras.Variable) and variable.synchronization == "on_read"


def value_here(variable: Variable) -> np.ndarray:
    """Returns the value that a variable has on this task; of one for each replica, their total.

    `keras.ops.convert_to_numpy` converts a variable on several devices in a way that NumPy 2 warns
    of, which ends a program that turns warnings into errors.
    """
    inside = tf_variable(variable) if isinstance(variable, keras.Variable) else variable
    return np.asarray(_read(inside).numpy())


def get_values(variables: Sequence[Variable], strategy: Strategy) -> list[Any]:
    """Reads the values of variables, for example for a snapshot of a training.

    If some variables have a value for each replica, as those of metrics have, all tasks (processes)
    must call it.

    Args:
        variables: The variables, the same on all tasks.
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.

    Returns:
        A tensor or array for each variable, of the variable's shape. If a variable has a value for
        each replica, the shape is `(replicas, *shape)`.
    """
    own = [v for v in variables if is_per_replica(v)]
    # Float64 holds every float32, and every integer that a metric counts up to.
    rows = [
        [np.asarray(_on_host(_read(_copies(v, strategy)[replica])), "float64").ravel() for v in own]
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
    """Assigns to variables the values that `get_values` has returned, for example from a snapshot.

    The number of replicas may have changed since.

    Args:
        variables: The variables, in the same order as for `get_values`.
        values: The values of the variables, equal on all tasks (processes).
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.
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
    """Returns the total of a variable that has a value for each replica, over this task's replicas.

    Only the replicas of this task (process) count, so other tasks are not needed. The total is the
    sum, the mean or the first value, as the variable declares in its `aggregation`.

    Args:
        variable: The variable, such as that of a metric.
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.
    """
    values = np.stack([np.asarray(_on_host(_read(copy))) for copy in _copies(variable, strategy)])
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
    """Returns the copies of a variable on this task (process): a `tf.Variable` for each replica.

    A variable that is split over ps tasks (parameter servers) is returned as one item.
    """
    value = tf_variable(variable) if isinstance(variable, keras.Variable) else variable
    return strategy.local_results(value)


def _read(copy: Any) -> Any:
    """Returns the value of a `tf.Variable`, or of a variable that is split over ps tasks."""
    return copy.read_value() if isinstance(copy, tf.Variable) else tf.convert_to_tensor(copy)


def _on_host(value: tf.Tensor) -> Any:
    """Copies a value to the host's memory, unless it is there already.

    The copy keeps the memory of the accelerator free. On a TPU it is needed for another reason,
    too: the buffers of variables are overwritten in place.
    """
    if value.shape.rank == 0:
        # NumPy makes no array of a single bfloat16 or float8 of TensorFlow.
        return np.asarray(value.numpy())
    if "CPU" in value.device.upper():
        return value
    with tf.device("CPU:0"):
        return tf.identity(value)


def _dtype(variable: keras.Variable) -> Any:
    return tf.as_dtype(variable.dtype).as_numpy_dtype
