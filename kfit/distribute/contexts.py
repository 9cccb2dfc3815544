"""Functions of `tf.distribute` for code inside of a step, such as an optimizer's update.

By these functions, code can ask on which replica it runs, or whether it runs for all replicas
together. It can also call a function for all replicas together, and recognize variables that have a
copy on each device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def replica_context() -> Any:
    """Returns TensorFlow's `ReplicaContext` of the replica whose step is being traced.

    The result is None in a cross-replica context: there, code runs in a strategy's scope for all
    replicas together, and not on one of the replicas.
    """
    return tf.distribute.get_replica_context()


def replica_index() -> Any:
    """Returns the index of the replica whose step is being traced, among the replicas of all tasks.

    The result is an int, or on a TPU a scalar tensor.
    """
    index = replica_context().replica_id_in_sync_group
    known = tf.get_static_value(index)
    return index if known is None else int(known)


def replicas_meet_here() -> bool:
    """Returns whether the calling code is in a cross-replica context.

    There, in a strategy's scope but on no replica, code acts for all replicas together.
    """
    return bool(tf.distribute.in_cross_replica_context())


def merge(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Calls `fn(strategy, *args)` once for all replicas together, instead of once on each replica.

    Every replica must call `merge`. Then `fn` is called in the cross-replica context. Its first
    argument is the `tf.distribute.Strategy`. Each of its other arguments is a per-replica value,
    which contains what each replica has passed.

    Args:
        fn: The function to call.
        args: This replica's arguments.

    Returns:
        What `fn` returns. If this contains per-replica values, each replica gets its own part of
        them.
    """
    return replica_context().merge_call(fn, args=args)


def is_on_devices(value: Any) -> bool:
    """Returns whether `value`, a TensorFlow variable, has a copy on each device of a strategy."""
    return isinstance(value, tf.distribute.DistributedValues)
