"""Digests of arrays: equal for equal ones, and of large ones in parts."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import tensorflow as tf

from kfit.fingerprints.digests import digest

ROWS = np.arange(12, dtype="float32").reshape(4, 3)


def test_dtype_and_shape_stand_before_the_checksum() -> None:
    assert digest(ROWS).startswith("float32 (4, 3) #")
    assert digest(ROWS) == digest(tf.constant(ROWS)) == digest(pd.DataFrame(ROWS))
    assert digest(ROWS) != digest(ROWS + 1)
    assert digest(tf.constant("text")) == digest(tf.constant("text"))


@pytest.mark.parametrize(
    "make",
    [
        scipy.sparse.csr_matrix,
        scipy.sparse.coo_matrix,
        tf.sparse.from_dense,
        lambda rows: tf.RaggedTensor.from_tensor(rows, lengths=[1, 2, 3, 1]),
    ],
)
def test_arrays_that_are_not_dense(make: Any) -> None:
    assert digest(make(ROWS)) == digest(make(ROWS.copy()))
    assert digest(make(ROWS)) != digest(make(ROWS + 1))


def test_of_a_large_array_parts_are_read() -> None:
    large = np.zeros((1000, 8), "uint8")
    parts = digest(large, whole=1000, chunk=8)
    assert digest(large.copy(), whole=1000, chunk=8) == parts
    large[0] = 1  # the first row and the last one are always among them
    assert digest(large, whole=1000, chunk=8) != parts
    large[:] = 0
    large[-1] = 1
    assert digest(large, whole=1000, chunk=8) != parts


def test_an_array_on_a_disk_is_that_of_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", ROWS)
    assert digest(np.load(tmp_path / "rows.npy", mmap_mode="r")) == digest(ROWS)


def test_files_may_lie_in_another_folder() -> None:
    assert digest(np.array(["/a/1.png", "/a/2.png"])) == digest(np.array(["/b/1.png", "/b/2.png"]))
    assert digest(np.array(["/a/1.png"])) != digest(np.array(["/a/2.png"]))
