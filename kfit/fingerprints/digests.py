"""Computes checksums of arrays, by which the data of a training is recognized.

Small arrays are read whole; of large ones only evenly spaced chunks are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.objects.checksum import checksum

_WHOLE = 1 << 28
"""An array in memory of up to this many bytes is read whole, in a quarter of a second."""
_CHUNKS, _CHUNK = 64, 1 << 20
"""The number and the size in bytes of the chunks that are read of larger arrays, or from disk."""


def digest(value: Any, whole: int = _WHOLE, chunk: int = _CHUNK) -> str:
    """Returns a text with the dtype, the shape and a checksum of an array.

    The text is part of the description of a training (the fingerprint) that is compared with that
    of a snapshot. The array may be of any library, and dense, sparse or ragged.

    Args:
        value: The array.
        whole: An array in memory of up to this many bytes is read whole.
        chunk: The number of bytes of each chunk that is read of a larger array.
    """
    if isinstance(value, tf.RaggedTensor):
        parts = [value.flat_values, *value.nested_row_splits]
        return " of ".join(["ragged", *(digest(part, whole, chunk) for part in parts)])
    if isinstance(value, (tf.SparseTensor, tf.IndexedSlices)):
        values, indices = digest(value.values, whole, chunk), digest(value.indices, whole, chunk)
        return f"sparse {values} at {indices}"
    if hasattr(value, "tocsr"):
        value = value.tocsr()
        parts = [value.data, value.indices, value.indptr]
        return f"sparse {value.shape} " + " ".join(digest(part, whole, chunk) for part in parts)
    if hasattr(value, "iloc"):  # a pandas object; its columns may differ in type
        value = np.asarray(value)
    elif hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    elif isinstance(value, tf.Tensor):
        value = np.asarray(value.numpy())  # `numpy` returns a single string as bytes
    found = checksum(map(_comparable, _pieces(value, whole, chunk)))
    shape = tuple(int(size) for size in value.shape)
    return f"{_dtype_of(value)} {shape} #{found:08x}"


def _dtype_of(value: Any) -> str:
    return str(getattr(value.dtype, "name", value.dtype))


def _pieces(value: Any, whole: int, chunk: int) -> Iterator[Any]:
    """Yields the parts of an array that its checksum is computed from.

    A small array is yielded whole; of a large one, chunks along the first axis are yielded. An
    array that is not in memory, such as a memory map, counts as large if it has more bytes than all
    the chunks together.

    Args:
        value: The array.
        whole: The most bytes of a small array in memory.
        chunk: The number of bytes of a chunk.
    """
    in_memory = isinstance(value, np.ndarray) and not isinstance(value, np.memmap)
    rows = int(value.shape[0]) if len(value.shape) else 0
    size = int(np.prod(value.shape, dtype="float64")) * getattr(value.dtype, "itemsize", 8)
    if not rows or size <= (whole if in_memory else _CHUNKS * chunk):
        yield value[...] if not in_memory and hasattr(value, "__getitem__") else value
        return
    count = max(1, chunk * rows // size)
    for start in np.linspace(0, rows - count, _CHUNKS, dtype="int64"):
        yield value[int(start) : int(start) + count]


def _comparable(piece: Any) -> np.ndarray:
    array = np.asarray(piece)
    if array.dtype.kind not in "OSUMm":
        return array
    # The elements may be paths, and the files may be in another folder after a restart.
    elements = [_text_of(element) for element in array.ravel().tolist()]
    text = "\0".join(map(os.path.basename, elements)).encode(errors="replace")
    return np.frombuffer(text, "uint8")


def _text_of(element: Any) -> str:
    return element.decode(errors="replace") if isinstance(element, bytes) else str(element)
