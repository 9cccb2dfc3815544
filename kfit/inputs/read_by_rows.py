"""Data of other libraries that is read by rows: Hugging Face's columns, and frames of polars.

They look like arrays on a disk (`stored.py`), so a batch reads its own rows only, and the whole is
never copied if it is large.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any

import keras
import numpy as np

Rows = slice | np.ndarray
"""Rows to read: a slice without a step, or int64 indices in ascending order."""


class ReadByRows:
    """An array whose rows are read by a function when they are asked for.

    Attributes:
        shape: The shape, `(examples, ...)`; the inner one is that of the first row.
        dtype: The dtype that all rows are converted to; object if they are no numbers.

    Args:
        read: Returns the rows that it is given, as anything that NumPy makes an array of.
        length: The number of rows.
        dtype: The dtype, if it is not that of the first row.
    """

    def __init__(
        self, read: Callable[[Rows], Any], length: int, dtype: np.dtype | None = None
    ) -> None:
        self._read = read
        first = _array_of(read(slice(0, 1)))
        self.shape = (length, *first.shape[1:])
        self.dtype = first.dtype if dtype is None else dtype

    @property
    def oindex(self) -> ReadByRows:
        """This array; zarr's arrays have an attribute of this name to read a list of rows."""
        return self

    def __getitem__(self, rows: Rows | EllipsisType) -> np.ndarray:
        found = _array_of(self._read(slice(None) if isinstance(rows, EllipsisType) else rows))
        if found.shape[1:] != self.shape[1:] or not np.can_cast(
            found.dtype, self.dtype, "same_kind"
        ):
            raise ValueError(
                f"all rows must be like the first one, which is {self.dtype} of shape "
                f"{self.shape[1:]}: fill in missing values, and pad lists to one length. Received: "
                f"rows of {found.dtype} of shape {found.shape[1:]}."
            )
        return found.astype(self.dtype, copy=False)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self[...], dtype)


def is_column(value: Any) -> bool:
    """Returns whether a value is a column of a Hugging Face data set, such as `data["x"]`."""
    cls = type(value)
    return cls.__module__.split(".")[0] == "datasets" and cls.__name__ == "Column"


def columns_as_arrays(data: Any) -> Any:
    """Returns the data that `fit` was given, with Hugging Face's columns as arrays.

    Args:
        data: A structure of anything; without such columns it is returned as it is.
    """
    if not any(map(is_column, keras.tree.flatten(data))):
        return data
    return keras.tree.map_structure(
        lambda leaf: _of_hugging_face(leaf) if is_column(leaf) else leaf, data
    )


def of_polars(frame: Any) -> ReadByRows:
    """Returns a polars frame or series as an array that reads rows.

    Args:
        frame: The frame, or the series. Integers become floats if any is missing, as in `to_numpy`.
    """
    dtype = _array_of(frame[:0]).dtype
    if dtype.kind in "iu" and np.any(frame.null_count()):
        dtype = np.dtype("float64")
    return ReadByRows(lambda rows: frame[rows], len(frame), dtype)


def _of_hugging_face(column: Any) -> ReadByRows:
    """Returns a column as an array that reads rows.

    Its data set is read in NumPy's format, which decodes images. A transform of the user's own is
    kept, and so are the arguments of NumPy's format.
    """
    name, source = column.column_name, column.source
    kind = getattr(source, "format", {}).get("type", "custom")  # a column of a column has no format
    if kind not in ("numpy", "custom"):
        column = source.with_format("numpy")[name]
    return ReadByRows(lambda rows: column[_indices(rows)], len(column))


def _indices(rows: Rows) -> slice | list[int]:
    return rows if isinstance(rows, slice) else rows.tolist()


def _array_of(rows: Any) -> np.ndarray:
    array = np.asarray(rows)
    return array if array.dtype.kind in "biufc" else array.astype(object)
