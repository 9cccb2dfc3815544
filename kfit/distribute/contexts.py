"""Where a line of code runs: on a replica, or where all replicas meet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf


def replica_context() -> Any:
    """The context of the replica that is being traced; None where replicas meet."""
    return tf.distribute.get_replica_context()


def replica_index() -> Any:
    """Global index of the replica that is being traced: an int, or on a TPU a scalar tensor."""
    index = replica_context().replica_id_in_sync_group
    known = tf.get_static_value(index)
    return index if known is None else int(known)


def replicas_meet_here() -> bool:
    """Whether this is called outside of the replicas, in the scope of a strategy."""
    return bool(tf.distribute.in_cross_replica_context())


def merge(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Leaves the replicas for one call of `fn(strategy, *args)`, which sees all of them."""
    return replica_context().merge_call(fn, args=args)


def is_on_devices(value: Any) -> bool:
    """Whether a variable of TensorFlow has a copy on each of a strategy's devices."""
    return isinstance(value, tf.distribute.DistributedValues)
