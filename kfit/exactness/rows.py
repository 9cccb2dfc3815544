"""Functions for the rows of a dense, ragged or sparse batch; a row is an example."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.internals.graphs import of_unknown_shape

Tensor = Any


def number_of_rows(batch: Tensor) -> Tensor:
    """Returns the number of rows (examples) of a batch.

    Args:
        batch: A dense, ragged or sparse tensor.

    Returns:
        An int if the static shape of a dense or sparse tensor shows the number; otherwise an int64
        scalar tensor.
    """
    if isinstance(batch, tf.RaggedTensor):
        return tf.cast(batch.nrows(), tf.int64)
    if batch.shape.rank and batch.shape[0] is not None:
        return int(batch.shape[0])
    if isinstance(batch, tf.SparseTensor):
        return batch.dense_shape[0]
    return tf.shape(batch, out_type=tf.int64)[0]


def rows_of_element(element: Any) -> Tensor:
    """Returns the number of rows (examples) in a batch: that of the first part that has rows.

    A part of known rank is preferred, since one of unknown rank may be a scalar.

    Args:
        element: The batch, or a part of it: a tensor, or a structure of tensors such as `(x, y)`. A
            step of the model's own may get scalars, too; scalars alone are one example.

    Returns:
        As `number_of_rows`.
    """
    parts = (part for part in tf.nest.flatten(element) if not is_scalar(part))
    first = min(parts, key=lambda part: part.shape.rank is None, default=None)
    return 1 if first is None else number_of_rows(first)


def take_rows(batch: Tensor, start: Tensor, size: Tensor) -> Tensor:
    """Returns `size` rows of a batch, beginning with row `start`.

    Args:
        batch: A dense, ragged or sparse batch.
        start: The index of the first row, an int or an int64 scalar.
        size: The number of rows, an int or an int64 scalar.
    """
    if isinstance(batch, tf.SparseTensor):
        rest = batch.dense_shape[1:]
        begin = tf.concat([[tf.cast(start, tf.int64)], tf.zeros_like(rest)], 0)
        part = tf.sparse.slice(batch, begin, tf.concat([[tf.cast(size, tf.int64)], rest], 0))
        part.set_shape([size if isinstance(size, int) else None, *batch.shape[1:]])
        return part
    return batch[start : start + size]


def of_unknown_size(batch: Tensor) -> Tensor:
    """Returns the same batch without a static number of rows.

    So the number of rows is no constant in the graph, and the graph shows which values are computed
    from it. Eager batches are returned unchanged.
    """
    if tf.executing_eagerly():
        return batch
    if isinstance(batch, tf.RaggedTensor):
        splits = of_unknown_shape(batch.row_splits, tf.TensorShape([None]))
        return tf.RaggedTensor.from_row_splits(batch.values, splits, validate=False)
    if isinstance(batch, tf.SparseTensor):
        shape = of_unknown_shape(batch.dense_shape, batch.dense_shape.shape)
        hidden = tf.SparseTensor(batch.indices, batch.values, shape)
        hidden.set_shape(with_any_rows(batch.shape))
        return hidden
    return of_unknown_shape(batch, with_any_rows(batch.shape))


def with_any_rows(shape: tf.TensorShape) -> tf.TensorShape:
    """Returns a static shape without its number of rows; a shape of unknown rank stays as it is."""
    return shape if shape.rank is None else tf.TensorShape([None, *shape[1:]])


def is_scalar(value: Any) -> bool:
    """Returns whether a value is a number or a scalar tensor, and so has no rows."""
    if isinstance(value, (list, tuple)):
        return False
    return bool(tf.TensorShape(getattr(value, "shape", ())).rank == 0)
