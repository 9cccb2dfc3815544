"""Arrays that HDF5 lacks come back byte by byte, and all others show that they have changed."""

from typing import Any

import numpy as np
import pytest

from kfit.objects.other_arrays import (
    can_save,
    dtype_of,
    from_bytes_of_items,
    is_compared,
    is_saved_by_bytes,
    memory_of,
    objects_in,
    text_of,
    to_bytes_of_items,
)

RECORDS = np.dtype([("a", "f4"), ("b", "i1", (2,)), ("c", [("d", "M8[D]"), ("e", "U3")])])
DTYPES: list[Any] = [
    *("M8[ns]", "M8[25s]", ">m8[D]", "V3"),
    *(RECORDS, np.dtype(RECORDS.descr, align=True), [("a", "f4")]),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_items_come_back_from_their_bytes(dtype: Any, shape: Any) -> None:
    array = np.frombuffer(bytes(range(250)) * 4, "u1")[: np.dtype(dtype).itemsize * 6]
    array = array.view(dtype)[: int(np.prod(shape))].reshape(shape)
    assert can_save(array.dtype)
    assert is_saved_by_bytes(array.dtype)
    content = to_bytes_of_items(array.T).copy()
    back = from_bytes_of_items(content, dtype_of(text_of(array.dtype)))
    assert (back.dtype, back.shape) == (array.dtype, array.T.shape)
    assert str(back) == str(array.T)
    assert back.flags.writeable


def test_what_is_not_saved_by_its_bytes() -> None:
    overlapping = np.dtype({"names": "ab", "formats": ["i4", "i4"], "offsets": [0, 2]})
    others = [object, "V0", [("a", "O")], [], np.dtype((np.record, [("a", "f4")])), overlapping]
    assert not any(can_save(np.dtype(each)) for each in others)
    assert not is_saved_by_bytes(np.dtype("f4"))
    assert can_save(np.dtype("f4"))
    assert can_save(np.dtype("U3"))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2, 3), "M8[D]"), ((2, 8), "f4"), ((2, 8), "O"), ((), "M8[D]")]
)
def test_bytes_that_are_no_such_items_are_refused(shape: Any, dtype: str) -> None:
    with pytest.raises(ValueError, match="cannot be items of"):
        from_bytes_of_items(np.zeros(shape, "u1"), np.dtype(dtype))


def test_a_text_of_no_dtype_is_refused() -> None:
    for text in ("__import__('os')", "'no'", "[", "[('a',)]"):
        with pytest.raises((ValueError, TypeError, SyntaxError)):
            dtype_of(text)


def test_what_an_array_consists_of(tmp_path: Any) -> None:
    masked = np.ma.array([1, 2], mask=[0, 1])
    assert [each.tolist() for each in memory_of(masked)] == [[1, 2], [False, True]]
    plain = np.zeros(2)
    assert memory_of(plain) == [plain]
    assert is_compared(masked)
    assert not is_compared(np.zeros(2, object))
    np.save(tmp_path / "file.npy", plain)
    assert not is_compared(np.load(tmp_path / "file.npy", mmap_mode="r"))
    assert is_compared(np.load(tmp_path / "file.npy", mmap_mode="r+"))


def test_the_objects_in_an_array() -> None:
    array = np.array([[1, "a"], [None, 2]], object)
    assert objects_in(array, 3) == [1, "a", None]
    records = np.zeros(3, [("a", "u1"), ("b", [("c", "O"), ("d", "O")])])
    assert objects_in(records, 2) == [b"\0\0", 0, 0, 0, 0]
