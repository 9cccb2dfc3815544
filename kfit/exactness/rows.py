"""Functions for the rows of a dense, ragged or sparse batch; a row is an example."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.internals.graphs import of_unknown_shape

Tensor = Any


def number_of_rows(batch: Tensor) -> Tensor:
    """The number of rows: an int if the static shape shows it, else an int64 scalar."""
    if isinstance(batch, tf.RaggedTensor):
        return tf.cast(batch.nrows(), tf.int64)
    if batch.shape.rank and batch.shape[0] is not None:
        return int(batch.shape[0])
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    return tf.shape(batch, out_type=tf.int64)[0]


def take_rows(batch: Tensor, start: Tensor, size: Tensor) -> Tensor:
    """Returns `size` rows from row `start` on; both are ints or int64 scalars."""
    if isinstance(batch, tf.SparseTensor):
        rest = batch.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
        part = tf.sparse.slice(batch, begin, tf.concat([[tf.cast(size, tf.int64)], rest], 0))
        part.set_shape([size if isinstance(size, int) else None, *batch.shape[1:]])
        return part
    return batch[start : start + size]


def of_unknown_size(batch: Tensor) -> Tensor:
    """The same batch, without a static number of rows, which would be a constant of the graph."""
    if tf.executing_eagerly() or not isinstance(batch, tf.Tensor):
        return batch
    return of_unknown_shape(batch, [None, *batch.shape[1:]])


def is_scalar(value: Any) -> bool:
    """Whether a number or tensor has no rows."""
    if isinstance(value, (list, tuple)):
        return False
    return bool(tf.TensorShape(getattr(value, "shape", ())).rank == 0)
