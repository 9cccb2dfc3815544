"""Arrays go to an HDF5 file and come back, whatever their dtype and shape."""

import io
import mmap
import tracemalloc
from typing import Any

import h5py
import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from kfit.checkpoint.hdf5_arrays import hdf5_bytes, read_hdf5

DTYPES = st.one_of(
    npst.floating_dtypes(endianness="="),
    npst.integer_dtypes(endianness="="),
    npst.unsigned_integer_dtypes(endianness="="),
    npst.boolean_dtypes(),
    npst.complex_number_dtypes(endianness="=", sizes=(64, 128)),
)
ARRAYS = npst.arrays(DTYPES, npst.array_shapes(min_dims=0, min_side=0, max_dims=3))


def written(arrays: Any) -> Any:
    return b"".join(hdf5_bytes(arrays))


def read(content: Any) -> Any:
    """What is read of the bytes; memory that can be released holds the same."""
    memory = mmap.mmap(-1, len(content), mmap.MAP_PRIVATE)
    memory[:] = content
    released = read_hdf5(memory)
    arrays = read_hdf5(content)
    assert list(arrays) == list(released)
    for name, array in arrays.items():
        assert array.tobytes() == released[name].tobytes()
    return arrays


@settings(max_examples=60, deadline=None)
@given(st.lists(ARRAYS, max_size=6))
def test_what_is_written_is_read(arrays: Any) -> None:
    named = {f"{i:06d}": a for i, a in enumerate(arrays)}
    back = read(written(named))
    assert list(back) == list(named)
    for name, array in named.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == np.asarray(array, order="C").tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_what_hdf5_does_not_know(dtype: Any) -> None:
    array = np.linspace(-3, 3, 14).reshape(2, 7).astype(getattr(ml_dtypes, dtype))
    back = read(written({"a": array, "b": array[0, 0]}))
    assert back["a"].dtype == array.dtype
    assert back["a"].tobytes() == array.tobytes()
    assert back["b"].shape == ()


def test_tensors_and_views() -> None:
    tensor = tf.reshape(tf.range(12.0), (3, 4))
    back = read(written({"a": tensor, "b": np.arange(12).reshape(3, 4).T[::2]}))
    np.testing.assert_array_equal(back["a"], tensor)
    np.testing.assert_array_equal(back["b"], np.arange(12).reshape(3, 4).T[::2])


def test_anybody_can_open_it() -> None:
    with h5py.File(io.BytesIO(written({"a": np.arange(3), "b": np.float32(2)}))) as file:
        assert file["a"][:].tolist() == [0, 1, 2]
        assert file["b"][()] == 2


def test_the_arrays_are_not_copied() -> None:
    array = np.zeros(1 << 20, "uint8")
    assert any(np.shares_memory(np.frombuffer(p, "uint8"), array) for p in hdf5_bytes({"a": array}))


def _with(change: Any) -> Any:
    file = io.BytesIO(written({"a": np.arange(3)}))
    with h5py.File(file, "r+") as opened:
        change(opened)
    return file.getvalue()


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.__setitem__("link", h5py.ExternalLink("/etc/passwd", "a")),
        lambda file: file.__setitem__("link", h5py.SoftLink("/a")),
        lambda file: file.create_group("group"),
        lambda file: file.create_dataset("bomb", (1 << 40,), "float32"),
        lambda file: file.create_dataset("text", data="hello"),
        lambda file: file["a"].attrs.__setitem__("dtype", "float3_of_tomorrow"),
        lambda file: file["a"].attrs.__setitem__("dtype", "finfo"),
        lambda file: file.create_dataset(
            "outside", (4,), "u1", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]
        ),
        lambda file: file.create_dataset("chunks", data=np.zeros(99), compression="gzip"),
        lambda file: file.create_dataset("nothing", data=h5py.Empty("f4")),
        lambda file: file.create_dataset("texts", data=["a"], dtype=h5py.string_dtype()),
        lambda file: file.create_dataset("lists", (2,), h5py.vlen_dtype("i4")),
        lambda file: file.create_dataset("references", (2,), h5py.ref_dtype),
        lambda file: file.create_dataset("one_of", (2,), h5py.enum_dtype({"A": 1}, "i1")),
        lambda file: file.create_dataset("truth", data=np.array([2], "u1").view("?")),
        lambda file: file["a"].attrs.__setitem__("dtype", "bfloat16"),
        lambda file: file["a"].attrs.__setitem__("dtype", [1, 2]),
    ],
    ids=[
        "external_link",
        "soft_link",
        "group",
        "shape_bomb",
        "text",
        "new_dtype",
        "no_dtype",
        "external_storage",
        "compressed",
        "nothing",
        "texts",
        "lists",
        "references",
        "enumeration",
        "no_truth",
        "dtype_of_another_size",
        "dtype_that_is_a_list",
    ],
)
def test_nothing_else_is_read(change: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"is no plain data set|cannot be|unknown dtype|truth value|kept as|other attributes",
    ):
        read(_with(change))


def test_many_arrays_that_take_no_space_are_not_made() -> None:
    """Each is as large as the file at most; together they would take 1.2 GB."""

    def add(file: Any) -> None:
        for index in range(2000):
            file.create_dataset(f"b{index}", (600_000,), "u1")

    content = _with(add)
    assert 600_000 < len(content) < 1_200_000
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="has no place"):
            read_hdf5(content)
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()


def test_arrays_that_share_their_place_are_not_made() -> None:
    """200 data sets whose bytes are those of the first: a file of 0.7 MB would be 120 MB."""
    count, size = 200, 600_000
    arrays = {f"{i:06d}": np.full(size if not i else 8, 1 + i % 250, "u1") for i in range(count)}
    content = bytearray(written(arrays))
    with h5py.File(io.BytesIO(content)) as file:
        offsets = [file[name].id.get_offset() for name in arrays]
    first = offsets[0].to_bytes(8, "little")
    for offset in offsets[1:]:  # where the layout says where it lies, and how many bytes it has
        place = content.index(offset.to_bytes(8, "little") + (8).to_bytes(8, "little"))
        content[place : place + 16] = first + size.to_bytes(8, "little")
        shape = content.rindex((8).to_bytes(8, "little") * 2, 0, place)
        content[shape : shape + 16] = size.to_bytes(8, "little") * 2
    with h5py.File(io.BytesIO(bytes(content))) as file:
        assert sum(file[name].nbytes for name in arrays) == count * size
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="as an array of its own"):
            read_hdf5(bytes(content))
        assert tracemalloc.get_traced_memory()[1] < 30e6
    finally:
        tracemalloc.stop()
