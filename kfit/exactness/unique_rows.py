"""Adds up the rows of sparse gradients in which a batch has each index only once.

A program may look up the rows of a weight by the different indices of the batch (`tf.unique`). So
does Keras when it multiplies a sparse input by a kernel. On one device the gradient then has one
row for each index. Several replicas have a row of the same index each, which must be added up:
optimizers square each row, and some clip it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from kfit.heartbeat.tracebacks import warn_user

Tensor = Any

_UNIQUE = {"Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}
_SAME = {"Cast", "Identity", "Reshape", "StopGradient"}
"""The operations whose result has the same numbers as their first input."""


@dataclass(frozen=True)
class UniqueRows:
    """How the rows of a sparse gradient are numbered while those of all replicas are collected.

    The gradient of a weight that is used several times consists of parts, one for each use. Each
    part has every index only once, but several may have the same index. On one device such rows
    stay apart, so an index is replaced by a number that also tells the part.

    Attributes:
        rows: The number of rows of the weight.
        parts: The indices of each part.
    """

    rows: Tensor
    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, grad: Any) -> UniqueRows | None:
        """Returns how to number the rows; None if the gradient may have an index several times.

        Args:
            grad: The gradient of a replica, sparse or dense.
        """
        if not isinstance(grad, tf.IndexedSlices) or tf.executing_eagerly():
            return None
        parts = list(_parts_of(grad.indices))
        are_unique = [_has_unique_values(part) for part in parts]
        if any(are_unique) and not all(are_unique):
            warn_user(
                "A weight is used with a sparse input, or by unique indices, and looked up by "
                "other indices as well. On several replicas its gradient has other rows than on "
                "one, so that what the optimizer makes of it depends on how many replicas there "
                "are, unless the optimizer is SGD."
            )
        if not all(are_unique) or grad.dense_shape is None:
            return None
        return cls(tf.cast(grad.dense_shape[0], tf.int64), tuple(parts))

    def sent(self, grad: tf.IndexedSlices) -> tf.IndexedSlices:
        """Returns the gradient with numbers in place of its indices."""
        numbers = [
            tf.cast(tf.reshape(part, [-1]), tf.int64) + position * self.rows
            for position, part in enumerate(self.parts)
        ]
        return tf.IndexedSlices(grad.values, tf.concat(numbers, 0), grad.dense_shape)

    def of_batch(self, total: tf.IndexedSlices, grad: tf.IndexedSlices) -> tf.IndexedSlices:
        """Adds up the rows of all replicas that have the same number.

        Args:
            total: The rows of all replicas, with the numbers that `sent` has given them.
            grad: The gradient of this replica.

        Returns:
            The gradient of the whole batch, with indices again.
        """
        numbers, place = tf.unique(total.indices)
        values = tf.math.unsorted_segment_sum(total.values, place, tf.size(numbers))
        return tf.IndexedSlices(
            values, tf.cast(numbers % self.rows, grad.indices.dtype), grad.dense_shape
        )


def _parts_of(indices: Tensor) -> Iterator[Tensor]:
    source = _source_of(indices)
    if source.op.type == "ConcatV2":
        *parts, _ = source.op.inputs
        for part in parts:
            yield from _parts_of(part)
    else:
        yield source


def _has_unique_values(source: Tensor) -> bool:
    """Returns whether a tensor is the first output of `tf.unique`, for numbers and not for rows."""
    return source.op.type in _UNIQUE and source.value_index == 0 and source.shape.rank == 1


def _source_of(indices: Tensor) -> Tensor:
    while indices.op.type in _SAME:
        indices = indices.op.inputs[0]
    return indices
