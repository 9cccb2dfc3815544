"""Sums over the replicas within a step: sums that layers and losses take, and those of gradients.

For a sum that a layer or loss takes, two things must be as for the global batch:

- Its value. A replica without examples computes on a stand-in row, which is no example of its own,
  but contributes zeros to the sum.
- Its gradient. The loss of the global batch is the sum of the replicas' losses, each weighted by
  the replica's share (its fraction of the batch's examples). So in the backward pass a replica must
  get the sum of all replicas' upstream gradients, weighted by the shares in the same way. Where
  kfit reads what the loss is, upstream gradients already have this weight, since kfit multiplies
  the loss by the share (`Replica.has_share`). Elsewhere, as in eager steps, it multiplies the
  upstream gradients in the backward pass of the sum.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.exactness.replica_context import (
    Replica,
    check_may_meet,
    current_replica,
    current_step,
)
from kfit.exactness.unique_rows import UniqueRows
from kfit.graphs.rows_axis import is_inner_size

Tensor = Any


def all_reduce_sum(value: Any) -> Any:
    """Sums a value of a layer or loss over all replicas of all tasks.

    It is a collective: all replicas must call it. Gradients flow back through the sum to all
    replicas.

    Args:
        value: A tensor, or a nested structure of tensors.
    """
    step = current_step()
    assert step is not None
    return _summed(step.strategy.all_reduce_sum, value)


def sum_gradients(grads: list[Any]) -> list[Any]:
    """Sums gradients over all replicas of all tasks.

    It is a collective: all replicas must call it.

    Args:
        grads: The gradients, already multiplied by the replica's share (its fraction of the batch's
            examples).
    """
    step, replica = current_step(), current_replica()
    assert step is not None
    assert replica is not None
    ways = [_way_of_rows(grad, replica, step.strategy) for grad in grads]
    with replica.summing():
        sent = [way.sent(grad) for way, grad in zip(ways, grads, strict=True)]
        sums: list[Any] = replica.origins.agreed(step.strategy.sum_gradients(sent))
        return [way.of_batch(*both) for way, *both in zip(ways, sums, grads, strict=True)]


class _AsTheyAre:
    """Dense gradients, and sparse ones whose rows of all replicas stay apart."""

    def sent(self, grad: Any) -> Any:
        return grad

    def of_batch(self, total: Any, grad: Any) -> Any:
        return total


class _EqualRows:
    """Sparse gradients whose rows have the same indices on all replicas."""

    def sent(self, grad: tf.IndexedSlices) -> Tensor:
        return grad.values

    def of_batch(self, total: Tensor, grad: tf.IndexedSlices) -> tf.IndexedSlices:
        return tf.IndexedSlices(total, grad.indices, grad.dense_shape)


def _way_of_rows(
    grad: Any, replica: Replica, strategy: Strategy
) -> _AsTheyAre | _EqualRows | UniqueRows:
    """Returns how the rows of a gradient are sent to the other replicas, and put together."""
    if _has_equal_rows(grad, replica):
        return _EqualRows()
    unique = UniqueRows.of(grad) if strategy.keeps_rows(grad) else None
    return unique or _AsTheyAre()


def _has_equal_rows(grad: Any, replica: Replica) -> bool:
    """Returns whether a sparse gradient has rows of the same indices on all replicas.

    An example is the gradient of an embedding of positions, which is looked up with
    `tf.range(length)`. On one device it has one row for each position, so the rows of the replicas
    must be summed. Rows of words, which are looked up with the examples, are put one behind the
    other, as on one device: most optimizers square each row before they add up those of one word.

    Args:
        grad: The gradient, sparse or dense.
        replica: The replica that is being traced.
    """
    if not isinstance(grad, tf.IndexedSlices) or tf.executing_eagerly():
        return False
    # Workers that read pipelines of their own may pad their examples to other lengths.
    is_equal = is_inner_size if replica.rows is not None else lambda tensor: False
    return not replica.origins.is_own(grad.indices, (), is_equal)


def largest(values: list[Any]) -> list[Any]:
    """Returns the elementwise maximum of each tensor over all replicas of all tasks.

    It is a collective: all replicas must call it.

    Args:
        values: This replica's tensors.
    """
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
    """Returns whether this replica is the first one that has examples, as a boolean tensor.

    It is used where exactly one replica must contribute a value, which must not be a replica
    without examples. In the last batch of the data some replicas may have none.

    If it is not known which rows of the global batch this replica has, the function is a
    collective: all replicas must call it.
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
    """Returns a replacement of `ReplicaContext.all_reduce`, which layers and losses may call.

    In the replacement, replicas without examples contribute zeros, and the gradients are those of
    the global batch's loss. Where replicas cannot communicate, as in a part of a step that XLA
    compiles, the replacement raises CannotMeetError.
    """

    def all_reduce(self: Any, reduce_op: Any, value: Any, options: Any = None) -> Any:
        return _summed(lambda value: original(self, reduce_op, value, options), value)

    return all_reduce


def gathered_from_examples(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `ReplicaContext.all_gather`, which layers and losses may call.

    Its result leaves out the stand-in rows on which replicas without examples compute, if values
    are gathered along axis 0. The gradients are then those of the global batch's loss, however
    many rows each replica has.
    """

    def all_gather(self: Any, value: Any, axis: int, options: Any = None) -> Any:
        replica = current_replica()
        if replica is not None and replica.has_gathered:
            return value
        if replica is not None and axis == 0 and not replica.sums:
            parts = tf.nest.flatten(value)
            if all(map(can_be_placed, parts)) and may_gather_rows(are_fixed=False):
                return tf.nest.pack_sequence_as(value, gather_rows(parts))
            value = tf.nest.map_structure(replica.own_rows, value)
        gathered = original(self, value, axis, options)
        return gathered if replica is None else replica.origins.agreed(gathered)

    return all_gather


def gather_rows(values: list[Tensor]) -> list[Tensor]:
    """Puts together the rows of all replicas' tensors, in the order of the replicas.

    It is a collective: all replicas must call it, where `may_gather_rows` is True. Gradients flow
    back to the rows of every replica. A replica without examples contributes no rows.

    Args:
        values: This replica's tensors. Replicas may have different numbers of rows. Where the sizes
            of other axes differ, as those of sequences may, shorter rows are filled with zeros.

    Returns:
        The tensors, equal on all replicas.
    """
    step, replica = current_step(), current_replica()
    assert step is not None
    assert replica is not None
    own = tf.one_hot(replica.index, step.strategy.num_replicas, dtype=tf.int64)[:, None]
    shapes = all_reduce_sum([own * tf.shape(each, tf.int64) for each in values])
    placed = [_placed(*both, replica) for both in zip(values, shapes, strict=True)]
    gathered: list[Tensor] = all_reduce_sum(placed)
    for total, value in zip(gathered, values, strict=True):
        total.set_shape([None, *value.shape[1:]])
    gathered = [tf.cast(*both) for both in zip(gathered, (v.dtype for v in values), strict=True)]
    return replica.origins.agreed(gathered)


def may_gather_rows(*, are_fixed: bool) -> bool:
    """Returns whether `gather_rows` may be called on the replica that is being traced.

    Code for TPUs must know the number of rows, and TensorFlow's collectives need tensors of the
    same shapes in all steps that a graph takes.

    Args:
        are_fixed: Whether the tensors of all replicas together have the same shapes in all steps.
    """
    step = current_step()
    assert step is not None
    if step.strategy.static_shapes:
        return False
    return are_fixed or not step.strategy.sums_by_collectives


def can_be_placed(value: Any) -> bool:
    """Returns whether `gather_rows` can put together the rows of a value: numbers or booleans."""
    is_number = isinstance(value, tf.Tensor) and (value.dtype.is_floating or _is_whole(value))
    return is_number and bool(value.shape.rank)


def _is_whole(value: Tensor) -> bool:
    return value.dtype.is_integer or value.dtype.is_bool


def _placed(value: Tensor, shapes: Tensor, replica: Replica) -> Tensor:
    """Returns a replica's rows at their places among those of all replicas, beside zeros.

    Strategies can only sum. The sum over the replicas has the rows of all.

    Args:
        value: The replica's tensor.
        shapes: The shapes of all replicas' tensors, a matrix with one row for each replica.
        replica: The replica that is being traced.
    """
    value = replica.own_rows(value)
    if _is_whole(value) and value.dtype not in (tf.int32, tf.int64):
        value = tf.cast(value, tf.int32)  # others cannot be summed everywhere
    rows, inner = shapes[:, 0], tf.reduce_max(shapes[:, 1:], 0)
    whole = tf.concat([[tf.reduce_sum(rows)], inner], 0)
    before = tf.concat([[tf.reduce_sum(rows[: replica.index])], tf.zeros_like(inner)], 0)
    return tf.pad(value, tf.stack([before, whole - before - tf.shape(value, tf.int64)], 1))


def _summed(reduce: Callable[[Any], Any], value: Any) -> Any:
    """Sums a value over the replicas by `reduce`, so that value and gradient are as on one device.

    Replicas without examples contribute zeros. In the backward pass the gradients of the replicas'
    losses are weighted by the replicas' shares (their fractions of the batch's examples). Neither
    is done outside of a replica's step, or if kfit itself sums values that are already weighted.

    Args:
        reduce: A function that sums a value over the replicas.
        value: A tensor, or a nested structure of tensors.

    Returns:
        What `reduce(value)` returns, equal on all replicas.

    Raises:
        CannotMeetError: If the replica must not communicate, such as in a part of a step that XLA
            compiles.
    """
    replica = current_replica()
    if replica is None:
        return reduce(value)
    if replica.has_gathered:
        return value
    check_may_meet()
    if replica.sums:
        return replica.origins.agreed(reduce(value))
    value = tf.nest.map_structure(replica.zero_if_empty, value)
    with replica.summing():
        if _shares_are_equal(replica):
            return replica.origins.agreed(reduce(value))

        def divided(grad: Tensor) -> Tensor:
            """Divides the gradient of what this replica adds to the sum by the replica's share.

            The gradient is already complete: it sums the upstream gradients of all replicas, each
            multiplied by the share of its replica. But the optimizer's update will multiply it by
            this replica's share once more, and the division undoes that in advance. If the loss was
            multiplied by the share, the gradient is returned unchanged.
            """
            return grad if replica.has_share else replica.divided_by_share(grad)

        def weighed(grad: Tensor) -> Tensor:
            """Multiplies the upstream gradient of the sum by this replica's share of the examples.

            The backward pass then sums the products over the replicas. If the loss was multiplied
            by the share, the upstream gradient has this factor already, and is returned unchanged.
            """
            return grad if replica.has_share else replica.weigh(grad)

        total = reduce(tf.nest.map_structure(lambda part: with_gradient(part, divided), value))
    replica.origins.agreed(total)
    return tf.nest.map_structure(lambda part: with_gradient(part, weighed), total)


def _shares_are_equal(replica: Replica) -> bool:
    """Returns whether all replicas are known to have the same number of examples.

    If so, the gradients of a sum over the replicas need no weights.
    """
    step = current_step()
    assert step is not None
    return isinstance(replica.share, float) and replica.share == 1 / step.strategy.num_replicas


def with_gradient(value: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns a tensor unchanged, but applies `change` to its gradient in the backward pass.

    Args:
        value: The tensor; anything but a floating-point tensor is returned as it is.
        change: Gets the upstream gradient, and returns the gradient of `value`.
    """
    if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
        return value
    return tf.custom_gradient(lambda value: (tf.identity(value), change))(value)
