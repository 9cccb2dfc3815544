"""Sums over the replicas within a step: sums that layers and losses take, and those of gradients.

For a sum that a layer or loss takes, two things must be as for the global batch. Its value: a
replica without examples contributes zeros, whatever it computed from its stand-in row. And its
gradient: a replica gets the sum of all replicas' upstream gradients, each weighted by the replica's
share, since each loss is an estimate that counts by its share. Keras' own step multiplies the loss
by the share beforehand. If a custom `train_step` does not, the gradients are multiplied by the
share in the backward pass of the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.exactness.replica_context import (
    Replica,
    check_may_meet,
    current_replica,
    current_step,
)

Tensor = Any


def all_reduce_sum(value: Any) -> Any:
    """Sums a value of a layer or loss over all replicas of all tasks. A collective."""
    step = current_step()
    assert step is not None
    return _summed(step.strategy.all_reduce_sum, value)


def sum_gradients(grads: list[Any]) -> list[Any]:
    """Sums gradients that are weighted by the share already over all replicas. A collective."""
    step, replica = current_step(), current_replica()
    assert step is not None
    assert replica is not None
    with replica.summing():
        sums: list[Any] = replica.origins.agreed(step.strategy.sum_gradients(grads))
        return sums


def largest(values: list[Any]) -> list[Any]:
    """The elementwise maximum of each tensor over all replicas of all tasks. A collective."""
    step, replica = current_step(), current_replica()
    assert step is not None
    assert replica is not None
    # Strategies can only sum, so each replica fills its own row of a table of zeros.
    own = tf.one_hot(replica.index, step.strategy.num_replicas, True, False, dtype=tf.bool)
    rows = [tf.reshape(own, [-1, *[1] * value.shape.rank]) for value in values]
    tables = [tf.where(row, v, tf.zeros_like(v)) for row, v in zip(rows, values, strict=True)]
    with replica.summing():
        return [tf.reduce_max(table, 0) for table in step.strategy.all_reduce_sum(tables)]


def is_first_with_examples(replica: Replica) -> Tensor:
    """Whether this replica is the first one that has examples.

    It is a collective, unless the replica's rows in the global batch are known.
    """
    step = current_step()
    assert step is not None
    has_some = tf.convert_to_tensor(replica.examples) > 0
    if replica.rows is not None:
        return tf.logical_and(has_some, tf.equal(replica.rows.start, 0))
    place = tf.one_hot(replica.index, step.strategy.num_replicas, dtype=tf.int64)
    with replica.summing():
        all_that_have = all_reduce_sum(place * tf.cast(has_some, tf.int64))
    return tf.equal(tf.argmax(all_that_have), tf.cast(replica.index, tf.int64))


def of_examples(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `ReplicaContext.all_reduce`, which layers and losses may call: no stand-in rows."""

    def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return _summed(lambda value: original(self, reduce_op, value, options), value)

    return all_reduce


def gathered_from_examples(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `ReplicaContext.all_gather` to leave out stand-in rows."""

    def all_gather(self: Any, value: Any, axis: int, options: Any = None) -> Any:
        replica = current_replica()
        if replica is not None and axis == 0 and not replica.sums:
            value = tf.nest.map_structure(replica.own_rows, value)
        gathered = original(self, value, axis, options)
        return gathered if replica is None else replica.origins.agreed(gathered)

    return all_gather


def _summed(reduce: Callable[[Any], Any], value: Any) -> Any:
    """`reduce(value)` without stand-in rows, with the gradient of the global batch's loss."""
    replica = current_replica()
    if replica is None:
        return reduce(value)
    check_may_meet()
    if replica.sums:
        return replica.origins.agreed(reduce(value))
    value = tf.nest.map_structure(replica.zero_if_empty, value)
    with replica.summing():
        if _shares_are_equal(replica):
            return replica.origins.agreed(reduce(value))

        def divided(grad: Tensor) -> Tensor:
            """Divides the gradient by the share, because the optimizer multiplies it later."""
            share = replica.share_as(grad.dtype)
            return grad if replica.scaled else tf.math.divide_no_nan(grad, share)

        def weighed(grad: Tensor) -> Tensor:
            """Multiplies the upstream gradient by the share, unless the loss was multiplied."""
            return grad if replica.scaled else replica.weigh(grad)

        total = reduce(tf.nest.map_structure(lambda part: with_gradient(part, divided), value))
    replica.origins.agreed(total)
    return tf.nest.map_structure(lambda part: with_gradient(part, weighed), total)


def _shares_are_equal(replica: Replica) -> bool:
    """Whether all replicas are known to have the same number of examples."""
    step = current_step()
    assert step is not None
    return isinstance(replica.share, float) and replica.share == 1 / step.strategy.num_replicas


def with_gradient(value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Identity of floating-point tensors, with `change` applied to the upstream gradient."""
    if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
        return value
    return tf.custom_gradient(lambda value: (tf.identity(value), change))(value)
