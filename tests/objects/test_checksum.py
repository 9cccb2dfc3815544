"""The checksum of arrays: of what they hold, one after the other."""

import zlib

import numpy as np

from kfit.objects.checksum import checksum


def test_it_is_of_the_bytes_whatever_the_shape_and_the_layout() -> None:
    rows = np.arange(12, dtype="float32").reshape(3, 4)
    whole = zlib.crc32(rows.tobytes())
    assert checksum([rows]) == checksum(list(rows)) == checksum([rows[:1], rows[1:]]) == whole
    assert checksum([rows.T]) == checksum([rows.T.copy()]) != whole
    assert checksum([rows[1:]], start=checksum([rows[:1]])) == whole
    assert checksum([]) == 0


def test_numbers_and_texts_of_every_kind() -> None:
    texts = np.array(["a", "bc"])
    assert checksum([texts]) == zlib.crc32(texts.tobytes())
    assert checksum([np.array(["", ""])]) == zlib.crc32(np.array(["", ""]).tobytes())
    assert checksum([np.float64(1.5), np.bool_(True)]) == checksum([np.array(1.5), [True]])
