"""Writes arrays to an HDF5 file in one pass without copying them, and reads such a file safely.

h5py creates the layout of the file in memory, without the contents of the arrays. The bytes of this
layout are then written to the disk, with the bytes of the arrays inserted at their offsets. So the
HDF5 library itself never writes to the disk (if the disk is full, the library can crash the
process), and the file is hashed while it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import h5py
import numpy as np

_CHUNK = 1 << 20
"""Bytes that are yielded at once, few enough to stay in the CPU cache for hashing and writing."""
_PAGE = 4096


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


def read_hdf5(file: BinaryIO, size: int) -> dict[str, np.ndarray]:
    """Reads an HDF5 file that `hdf5_bytes` made, and returns its arrays by name.

    Args:
        file: The file, open for reading.
        size: The size of the file in bytes. If the arrays together are larger, the file is
            rejected, since `hdf5_bytes` has not written it.

    Raises:
        ValueError: If the file contains anything that `hdf5_bytes` does not write.
        OSError: If the file is not an HDF5 file.
    """
    arrays: dict[str, np.ndarray] = {}
    with h5py.File(file, "r") as opened:
        for name in opened:
            # An array may take no space in the file, so each one alone could be as large as it.
            arrays[name] = _read(opened, name, size)
            size -= arrays[name].nbytes
    return arrays


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


def _read(file: h5py.File, name: str, size: int) -> np.ndarray:
    dataset = file.get(name) if file.get(name, getlink=True).__class__ is h5py.HardLink else None
    if not isinstance(dataset, h5py.Dataset) or dataset.external or dataset.is_virtual:
        raise ValueError(f"{name!r} is no plain data set")
    if dataset.dtype.kind not in "biufc" or dataset.nbytes > size:
        raise ValueError(f"{name!r} cannot be {dataset.shape} of {dataset.dtype}")
    array = np.asarray(dataset[()])
    kept_as = dataset.attrs.get("dtype")
    if kept_as is None:
        return array
    try:
        return array.view(_dtype(str(kept_as)))
    except (AttributeError, TypeError) as error:
        raise ValueError(f"{name!r} is of the unknown dtype {kept_as!r}") from error


def _dtype(name: str) -> Any:
    import ml_dtypes  # a dependency of TensorFlow that defines these dtypes

    return np.dtype(getattr(ml_dtypes, name))


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
