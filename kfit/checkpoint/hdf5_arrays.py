"""Writes arrays to an HDF5 file in one pass without copying them, and reads such a file safely.

h5py creates the layout of the file in memory, without the contents of the arrays. The bytes of this
layout are then written to the disk, with the bytes of the arrays inserted at their offsets. So the
HDF5 library itself never writes to the disk (if the disk is full, the library can crash the
process), and the file is hashed while it is written.

A file is read from memory, so that its reader has hashed the same bytes that are parsed. The HDF5
library only reads the layout. The arrays are copied from where the layout says that they are.
"""

from __future__ import annotations

import io
import math
import mmap
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import h5py
import numpy as np

_CHUNK = 1 << 20
"""Bytes that are yielded at once, few enough to stay in the CPU cache for hashing and writing."""
_PAGE = 4096
_COPIED = 1 << 24
"""Bytes that are copied from a file in memory before their place there is released."""


def hdf5_bytes(arrays: Mapping[str, Any]) -> Iterator[memoryview]:
    """Yields, in order, the bytes of an HDF5 file with one data set for each array.

    Args:
        arrays: The arrays by name: NumPy arrays or tensors on the CPU, of any numeric or boolean
            dtype. Contiguous arrays are not copied.
    """
    plain = {name: np.asarray(a, order="C") for name, a in arrays.items()}
    layout = _SparseFile()
    places: list[tuple[int, np.ndarray]] = []
    with h5py.File(layout, "w") as file:
        for name, array in plain.items():
            offset = _reserve(file, name, array.shape, array.dtype)
            if offset is not None:
                places.append((offset, array.reshape(-1).view(np.uint8)))
    position = 0
    for offset, content in sorted(places, key=lambda place: place[0]):
        yield memoryview(layout.content(position, offset))
        for start in range(0, content.size, _CHUNK):
            yield content[start : start + _CHUNK].data
        position = offset + content.size
    yield memoryview(layout.content(position, layout.size))


def read_hdf5(content: bytes | mmap.mmap) -> dict[str, np.ndarray]:
    """Returns the arrays of an HDF5 file that `hdf5_bytes` made, by name.

    Args:
        content: The bytes of the file. Anonymous memory is released while it is read, so that the
            file and the arrays together take hardly more memory than one of them; do not use it
            afterwards.

    Raises:
        ValueError: If the file contains anything that `hdf5_bytes` does not write.
        OSError: If the file is not an HDF5 file.
    """
    try:
        with h5py.File(_InMemory(content), "r") as file:
            places = [_place(file, name) for name in file]
    except (RuntimeError, KeyError, TypeError, AttributeError) as error:  # of h5py
        raise ValueError(f"it has a part that cannot be read: {error}") from error
    arrays: dict[str, np.ndarray] = {}
    end = 0
    for place in sorted(places, key=lambda place: place.offset):
        # Arrays that lie behind each other cannot be larger than the file together.
        if place.size and not end <= place.offset <= len(content) - place.size:
            raise ValueError(f"{place.name!r} does not lie in the file as an array of its own")
        arrays[place.name] = _copied(content, place)
        end = max(end, place.offset + place.size)
    return {place.name: arrays[place.name] for place in places}


def _reserve(file: h5py.File, name: str, shape: tuple[int, ...], dtype: np.dtype) -> int | None:
    """Creates a data set for an array in an HDF5 file without writing the array's content.

    Returns:
        The offset in the file at which the content belongs; None if the array is empty.
    """
    # HDF5 has no bfloat16 and similar dtypes: their bits are stored as unsigned integers, and the
    # name of the dtype in an attribute.
    # `isbuiltin` is 2 for those dtypes; the kind of some of them is that of NumPy's own floats.
    native = dtype.kind in "biufc" and dtype.isbuiltin != 2
    stored = dtype if native else np.dtype(f"u{dtype.itemsize}")
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_layout(h5py.h5d.CONTIGUOUS)
    properties.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    properties.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.h5d.create(
        file.id, name.encode(), h5py.h5t.py_create(stored, logical=True), space, properties
    )
    if not native:
        h5py.Dataset(dataset).attrs["dtype"] = dtype.name
    offset = dataset.get_offset()
    return None if offset is None or 0 in shape else int(offset)


class _Place(NamedTuple):
    """Where the layout of a file says that an array is, and what it is.

    Attributes:
        name: The name of the array.
        offset: The offset of its first byte in the file; 0 if it is empty.
        size: Its size in bytes.
        shape: Its shape.
        stored: The dtype of its bytes in the file.
        dtype: Its own dtype, which HDF5 may not have.
    """

    name: str
    offset: int
    size: int
    shape: tuple[int, ...]
    stored: np.dtype
    dtype: np.dtype


def _place(file: h5py.File, name: str) -> _Place:
    dataset = file.get(name) if file.get(name, getlink=True).__class__ is h5py.HardLink else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"{name!r} is no plain data set")
    stored, shape = dataset.dtype, dataset.shape
    if stored.kind not in "biufc" or not dataset.id.get_type().equal(
        h5py.h5t.py_create(stored, logical=True)
    ):
        raise ValueError(f"{name!r:.50} cannot be {shape} of {stored!s:.50}")
    size = math.prod(shape) * stored.itemsize
    offset = dataset.id.get_offset()  # none if it has no place, or several (chunks)
    if size and offset is None:
        raise ValueError(f"{name!r} cannot be {shape} of {stored}, since it has no place")
    kept_as = _kept_as(dataset, name)
    dtype = stored if kept_as is None else _dtype(name, kept_as)
    if dtype.itemsize != stored.itemsize:
        raise ValueError(f"{name!r} is {dtype}, kept as {stored}")
    return _Place(name, offset if size else 0, size, shape, stored, dtype)


def _kept_as(dataset: h5py.Dataset, name: str) -> str | None:
    """Returns the text of the attribute `dtype`, or None if there is none.

    An attribute could also be an array of many texts that share one place in the file, and so take
    far more memory than the file.
    """
    names = list(dataset.attrs)
    if not names:
        return None
    if names != ["dtype"] or dataset.attrs.get_id("dtype").shape != ():
        raise ValueError(f"{name!r:.50} has other attributes than those that kfit writes")
    return str(dataset.attrs["dtype"])


def _copied(content: bytes | mmap.mmap, place: _Place) -> np.ndarray:
    """Copies an array from the bytes of a file, and releases those of them that it can."""
    array = np.empty(place.shape, place.stored)
    flat, end = array.reshape(-1).view(np.uint8), place.offset + place.size
    whole = np.frombuffer(content, np.uint8)
    for start in range(place.offset, end, _COPIED):
        stop = min(end, start + _COPIED)
        flat[start - place.offset : stop - place.offset] = whole[start:stop]
        first, last = -(-start // mmap.PAGESIZE), stop // mmap.PAGESIZE
        if isinstance(content, mmap.mmap) and first < last:
            pages = first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
            content.madvise(mmap.MADV_DONTNEED, *pages)
    if place.stored.kind == "b" and flat.max(initial=0) > 1:
        raise ValueError(f"{place.name!r} holds a truth value that is neither")
    return array.view(place.dtype)


def _dtype(name: str, kept_as: str) -> np.dtype:
    import ml_dtypes  # a dependency of TensorFlow that defines these dtypes

    try:
        found = np.dtype(getattr(ml_dtypes, kept_as))
    except (AttributeError, TypeError):
        found = np.dtype(object)  # as of what is no dtype
    if found.isbuiltin != 2:
        raise ValueError(f"{name!r} is of the unknown dtype {kept_as!r:.50}")
    return found


class _InMemory(io.RawIOBase):
    """Bytes in memory as a file, without a copy of them."""

    def __init__(self, content: bytes | mmap.mmap) -> None:
        self._content = content
        self._position = 0

    def readinto(self, buffer: Any) -> int:
        part = self._content[self._position : self._position + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, len(self._content))[whence]
        return self._position


class _SparseFile:
    """A file in memory, to which h5py writes an HDF5 file without the contents of its arrays.

    Pages that were never written, such as those of the arrays, take no memory.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self.size = 0

    def content(self, start: int, stop: int) -> bytes:
        """Returns the bytes from `start` to `stop`; zeros where nothing was written."""
        content = bytearray()
        while start < stop:
            page, offset = divmod(start, _PAGE)
            length = min(_PAGE - offset, stop - start)
            content += self._pages.get(page, bytes(_PAGE))[offset : offset + length]
            start += length
        return bytes(content)

    def write(self, data: Any) -> int:
        data, written = memoryview(data).cast("B"), 0
        while written < len(data):
            page, offset = divmod(self._position, _PAGE)
            length = min(_PAGE - offset, len(data) - written)
            kept = self._pages.setdefault(page, bytearray(_PAGE))
            kept[offset : offset + length] = data[written : written + length]
            written += length
            self._position += length
        self.size = max(self.size, self._position)
        return written

    def read(self, count: int) -> bytes:
        content = self.content(self._position, min(self._position + count, self.size))
        self._position += len(content)
        return content

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def flush(self) -> None:
        """Does nothing, since writes are not buffered."""
