"""Arrays that are read in place: rows are read when a batch needs them.

So large arrays on a disk are never loaded whole, and large arrays in memory are not copied.
"""

from __future__ import annotations

from types import EllipsisType
from typing import Any
from weakref import WeakMethod

import keras
import numpy as np
import tensorflow as tf

from kfit.inputs.read_by_rows import ReadByRows

COPIED = 2**28
"""Arrays of at most so many bytes (256 MB) are copied to a tensor, since TensorFlow then gathers
rows without Python."""


class StoredColumn:
    """A large array of numbers in the user's data, whose rows are read when a batch needs them.

    Args:
        array: A NumPy array, an array of h5py or zarr, or a `ReadByRows`.
        floats: The dtype that floats are converted to; None if they keep their own.
    """

    def __init__(self, array: Any, floats: tf.DType | None) -> None:
        self._array: Any = array
        self._read_as = np.dtype(array.dtype).newbyteorder("=")
        self._shape = tuple(array.shape[1:])
        dtype = tf.as_dtype(self._read_as)
        self._dtype = floats if dtype.is_floating and floats is not None else dtype
        self.length = int(array.shape[0])
        self.tensors = tf.constant(0)  # none is needed, but a data set must have one
        self.spec = keras.KerasTensor((None, *self._shape), self._dtype.name)

    def all_rows(self) -> tf.Tensor:
        """Returns a copy of all rows."""
        return self.gather(None, tf.range(self.length, dtype=tf.int64), self.length)

    def gather(self, _: Any, rows: tf.Tensor, count: int) -> tf.Tensor:
        """Returns a batch.

        Args:
            _: Not used. The classes of other kinds of arrays have the same method, and are passed
                the tensor to gather from.
            rows: The indices of the batch's examples: an int64 tensor of shape `(count,)`.
            count: The number of examples.
        """
        # Weakly, since TensorFlow keeps the graph that calls it until Python's garbage collector
        # finds the graph, and the array with it.
        own = WeakMethod(self._read)
        read = tf.numpy_function(lambda r: own()(r), [rows], self._read_as, stateful=False)  # type: ignore[misc]
        return tf.cast(tf.ensure_shape(read, [count, *self._shape]), self._dtype)

    def _read(self, rows: np.ndarray) -> np.ndarray:
        if isinstance(self._array, np.ndarray):
            found = self._array.take(rows, axis=0)  # other threads may run meanwhile
        else:
            found = read_rows(self._array, rows)
        return found.astype(self._read_as, copy=False)


class Part:
    """Consecutive rows of an array on a disk, such as those of `validation_split`.

    It reads nothing before its rows are asked for.

    Args:
        array: An array of h5py or zarr, or a `ReadByRows`.
        rows: The rows, as a slice without a step.
    """

    def __init__(self, array: Any, rows: slice) -> None:
        self.whole = array
        self.start, stop, _ = rows.indices(array.shape[0])
        self.shape = (max(0, stop - self.start), *array.shape[1:])
        self.dtype = array.dtype

    def __getitem__(self, rows: slice | EllipsisType) -> Any:
        start, stop, _ = (slice(None) if rows is ... else rows).indices(self.shape[0])
        return self.whole[self.start + start : self.start + stop]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype)


def is_stored(value: Any) -> bool:
    """Returns whether `value` is read by rows: an array of h5py or zarr, or a `Part` of one."""
    is_of_kfit = isinstance(value, (Part, ReadByRows))
    return is_of_kfit or type(value).__module__.split(".")[0] in ("h5py", "zarr")


def reads_in_place(array: Any) -> bool:
    """Returns whether an array should be a `StoredColumn`: numbers of more than `COPIED` bytes."""
    dtype = np.dtype(array.dtype)
    return dtype.kind in "biufc" and dtype.itemsize * int(np.prod(array.shape, dtype="f8")) > COPIED


def read_rows(array: Any, rows: np.ndarray) -> np.ndarray:
    """Returns rows of an array on a disk; a row that is requested several times is read once.

    Args:
        array: An array of h5py or zarr, a `ReadByRows`, or a `Part` of one.
        rows: int64 indices of shape `(n,)`, in any order.

    Returns:
        An array of shape `(n, ...)`.
    """
    if isinstance(array, Part):
        return read_rows(array.whole, array.start + rows)
    wanted, place = np.unique(rows, return_inverse=True)
    if hasattr(array, "oindex"):  # zarr reads, and decompresses, each chunk once
        return _in_order(array.oindex[wanted], place)
    ends = np.flatnonzero(np.diff(wanted) > 1) + 1
    stretches = [
        array[int(stretch[0]) : int(stretch[-1]) + 1] for stretch in np.split(wanted, ends)
    ]
    return _in_order(np.concatenate(stretches) if len(stretches) > 1 else stretches[0], place)


def _in_order(found: np.ndarray, place: np.ndarray) -> np.ndarray:
    is_in_order = len(found) == len(place) and bool((np.diff(place) == 1).all())
    return found if is_in_order else found.take(place, axis=0)
