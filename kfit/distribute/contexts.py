"""The tf.distribute context of the calling code: a replica, or all replicas together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def replica_context() -> Any:
    """Returns the context of the replica that is being traced; None in a cross-replica context."""
    return tf.distribute.get_replica_context()


def replica_index() -> Any:
    """Returns the global index of the replica that is being traced.

    It is an int, or on a TPU a scalar tensor.
    """
    index = replica_context().replica_id_in_sync_group
    known = tf.get_static_value(index)
    return index if known is None else int(known)


def replicas_meet_here() -> bool:
    """Returns whether this is called in a cross-replica context.

    That is the context in a strategy's scope, but on no replica.
    """
    return bool(tf.distribute.in_cross_replica_context())


def merge(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Calls `fn(strategy, *args)` once for all replicas, in the cross-replica context.

    All replicas must call `merge`. `fn` gets their `args` as per-replica values.
    """
    return replica_context().merge_call(fn, args=args)


def is_on_devices(value: Any) -> bool:
    """Returns whether `value` is a TensorFlow variable with a copy on each device of a strategy."""
    return isinstance(value, tf.distribute.DistributedValues)
