"""Arrays of dates and of records, which HDF5 has no simple form for, and arrays of objects.

Dates, spans of time, and records of fields are saved as their bytes, beside a text that describes
their dtype. Arrays of objects, and those of other classes such as masked arrays, are not saved, but
they are compared, to tell if they have changed.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

import numpy as np

_OWN = "biufcUS"
"""The kinds of dtypes that are saved as they are, or as texts."""
_BY_BYTES = (np.datetime64, np.timedelta64, np.void)
_OF_ML_DTYPES = 2
"""What `isbuiltin` is for bfloat16 and its like, which are saved as they are."""


def can_save(dtype: np.dtype) -> bool:
    """Returns whether arrays of a dtype can be saved, and restored with exactly this dtype."""
    return dtype.kind in _OWN or dtype.isbuiltin == _OF_ML_DTYPES or is_saved_by_bytes(dtype)


def is_saved_by_bytes(dtype: np.dtype) -> bool:
    """Returns whether a dtype is of dates, spans of time or records, whose bytes are saved."""
    if dtype.type not in _BY_BYTES or dtype.hasobject or not dtype.itemsize:
        return False
    return _has_text(dtype)


@lru_cache(maxsize=1024)
def _has_text(dtype: np.dtype) -> bool:
    try:
        return dtype_of(text_of(dtype)) == dtype
    except ValueError:  # the fields of the records overlap
        return False


def text_of(dtype: np.dtype) -> str:
    """Returns a text that describes a dtype, as the header of an `.npy` file does.

    Raises:
        ValueError: If there is none.
    """
    return repr(np.lib.format.dtype_to_descr(dtype))


def dtype_of(text: str) -> np.dtype:
    """Returns the dtype of a text that `text_of` returned.

    Raises:
        ValueError: If it is no such text.
        Exception: The same.
    """
    return np.dtype(np.lib.format.descr_to_dtype(ast.literal_eval(text)))


def to_bytes_of_items(array: np.ndarray) -> np.ndarray:
    """Copies an array to one of bytes, with a further axis for the bytes of each item."""
    flat = np.frombuffer(array.tobytes(), "uint8")
    return flat.reshape(*array.shape, array.dtype.itemsize)


def from_bytes_of_items(content: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Copies an array of bytes, which `to_bytes_of_items` returned, to the array.

    Raises:
        ValueError: If the bytes cannot be such an array.
    """
    bytes_of_items = np.asarray(content, "uint8")
    if not is_saved_by_bytes(dtype) or bytes_of_items.shape[-1:] != (dtype.itemsize,):
        raise ValueError(f"bytes of the shape {bytes_of_items.shape} cannot be items of {dtype}")
    return np.frombuffer(bytes_of_items.tobytes(), dtype).reshape(bytes_of_items.shape[:-1]).copy()


def memory_of(array: np.ndarray) -> list[np.ndarray]:
    """Returns the arrays of NumPy's own class that make up an array, such as its data and its mask.

    If the array is of NumPy's own class, these are the array alone.
    """
    if isinstance(array, np.ma.MaskedArray):
        return [np.ma.getdata(array), np.ma.getmaskarray(array)]
    return [array]


def is_compared(value: Any) -> bool:
    """Returns whether a value is an array whose memory tells that it has changed.

    Arrays of objects hold only references. A file in memory that is read only is not read either:
    that would take long.
    """
    if not isinstance(value, np.ndarray) or value.dtype.hasobject:
        return False
    return not isinstance(value, np.memmap) or bool(value.flags.writeable)


def objects_in(array: np.ndarray, most: int) -> list[Any]:
    """Returns the first objects in an array of objects, or in one of records that contain some.

    Args:
        array: The array.
        most: How many objects are returned of each field of records.
    """
    if array.dtype.names is not None:
        return [each for name in array.dtype.names for each in objects_in(array[name], most)]
    first = array.reshape(-1)[:most]
    return first.tolist() if array.dtype.hasobject else [first.tobytes()]
