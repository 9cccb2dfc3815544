"""Large arrays, and arrays on a disk, are read row by row and train as if they were copied."""

import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kfit
from kfit.distribute import Strategy
from kfit.inputs import as_batches, stored
from kfit.inputs.stored import Part, StoredColumn, read_rows
from tests.sweeps import only

ROWS = 103
KINDS = ["numpy", "fortran", "memmap", "h5py", "zarr"]


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of more than 100 bytes count as large."""
    monkeypatch.setattr(stored, "COPIED", 100)


def opened(kind: str, array: np.ndarray, folder: Path) -> Any:
    """Returns the array as one of the kind, on a disk if the kind is."""
    if kind == "numpy":
        return array
    if kind == "fortran":
        return np.asfortranarray(array)
    if kind == "memmap":
        np.save(folder / "array.npy", array)
        return np.load(folder / "array.npy", mmap_mode="r")
    if kind == "h5py":
        file = h5py.File(folder / "array.h5", "w")
        file.create_dataset("array", data=array, chunks=(7, *array.shape[1:]))
        return file["array"]
    made = zarr.create_array(folder / "a", shape=array.shape, chunks=(7, 2), dtype=array.dtype)
    made[:] = array
    return made


class Watched:
    """An array of h5py's module that records how many rows are read at once."""

    __module__ = "h5py"

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.shape, self.dtype = array, array.shape, array.dtype
        self.read: list[int] = []

    def __getitem__(self, rows: slice) -> np.ndarray:
        found = self.array[rows]
        self.read.append(len(found))
        return found

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the array was read whole")


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def data() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(ROWS, 4)), draw.integers(0, 3, ROWS)


def numbers(x: Any, y: Any, strategy: Strategy, shuffle: Any) -> list[float]:
    """Returns what training, evaluation and prediction on the data come to."""
    trainer = kfit.Trainer(model(), strategy)
    options = {"batch_size": 10, "epochs": 2, "validation_split": 0.2, "verbose": 0}
    history = trainer.fit(x, y, shuffle=shuffle, **options).history
    score = trainer.evaluate(x, y, batch_size=10, verbose=0)
    total = float(np.abs(trainer.predict(x, batch_size=10, verbose=0)).sum())
    return [*history["loss"], *history["val_loss"], score, total]


@pytest.mark.parametrize(
    "shuffle", [True, *(pytest.param(each, marks=pytest.mark.long) for each in (False, "batch"))]
)
@pytest.mark.parametrize("kind", only(["memmap"], KINDS))
def test_the_numbers_are_those_of_a_copied_array(
    tiny: Any, tmp_path: Path, monkeypatch: Any, kind: str, shuffle: Any
) -> None:
    x, y = data()
    expected = numbers(x, y, tiny.strategy(2), shuffle)
    monkeypatch.setattr(stored, "COPIED", 100)
    got = numbers(opened(kind, x, tmp_path), y, tiny.strategy(2), shuffle)
    assert got == expected


class Fails(keras.callbacks.Callback):
    """Raises an error in the step of a number."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if not self.left:
            raise OSError("the disk is full")


@pytest.mark.long
@pytest.mark.usefixtures("in_place")
@pytest.mark.filterwarnings("ignore:The snapshot has a state of the callback Fails")
@pytest.mark.parametrize("kind", only(["h5py"], KINDS))
def test_training_resumes_on_it_to_the_same_bits(tiny: Any, tmp_path: Path, kind: str) -> None:
    x, y = data()
    array = opened(kind, x, tmp_path)

    def fit(*callbacks: keras.callbacks.Callback) -> kfit.Trainer:
        trainer = kfit.Trainer(model(), tiny.strategy(2), seed=5)
        trainer.fit(array, y, batch_size=10, epochs=3, verbose=0, callbacks=list(callbacks))
        return trainer

    spared = fit()
    backup = kfit.callbacks.BackupAndRestore(tmp_path / "backup", save_freq=1)
    with pytest.raises(OSError, match="the disk is full"):
        fit(backup, Fails(17))  # within the second of three epochs of eleven steps
    resumed = fit(backup)
    assert resumed.report().restores == 1
    assert resumed.model.history.history == spared.model.history.history
    assert tiny.distance(spared.model, resumed.model) == 0


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.long)])
def test_an_array_on_a_disk_is_never_read_whole(tiny: Any, shuffle: bool) -> None:
    x, y = data()
    watched = Watched(x)
    numbers(watched, y, tiny.strategy(2), shuffle)
    assert watched.read
    assert max(watched.read) <= 10
    if not shuffle:  # one read for each batch, or for each chunk of its checksum
        assert set(watched.read) >= {10}


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("dtype", ["float16", "float64", ">f4", "uint8", ">i4", "bool"])
def test_types_are_those_of_a_copied_array(tiny: Any, monkeypatch: Any, dtype: str) -> None:
    array = (np.random.default_rng(0).normal(size=(ROWS, 3)) > 0).astype(dtype)

    def first() -> Any:
        batches = as_batches(array, batch_size=10, strategy=tiny.strategy(1))
        return next(batches.segments(0)).next_element()[0], batches.spec

    (got, got_spec) = first()
    monkeypatch.setattr(stored, "COPIED", 2**20)
    (expected, expected_spec) = first()
    assert got.dtype == expected.dtype
    assert (got_spec.dtype, got_spec.shape) == (expected_spec.dtype, expected_spec.shape)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.usefixtures("in_place")
def test_a_batch_of_its_own_is_read_in_place_as_well() -> None:
    x, y = data()
    one, many = model(), kfit.Trainer(model(), "one_device")
    assert many.train_on_batch(x, y) == pytest.approx(one.train_on_batch(x, y), rel=1e-6)
    np.testing.assert_allclose(many.predict_on_batch(x), one.predict_on_batch(x), rtol=1e-5)


@pytest.mark.usefixtures("in_place")
def test_the_array_is_not_kept_after_training() -> None:
    x, y = data()
    trainer = kfit.Trainer(model(), "one_device")
    trainer.fit(x, y, epochs=2, verbose=0)
    trainer.predict(x, verbose=0)
    kept = weakref.ref(x)
    del x
    assert kept() is None


@pytest.mark.usefixtures("in_place")
def test_a_file_that_is_closed_in_training_ends_it(tmp_path: Path) -> None:
    x, y = data()
    array = opened("h5py", x, tmp_path)
    file = array.file
    closes = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: file.close())
    with pytest.raises((RuntimeError, tf.errors.OpError), match="identifier is not of"):
        kfit.fit(model(), array, y, epochs=50, verbose=0, strategy="one_device", callbacks=[closes])


@pytest.mark.long
def test_small_arrays_and_text_are_copied() -> None:
    assert not stored.reads_in_place(np.zeros(8))
    assert not stored.reads_in_place(np.full(2**24, "a sentence of some words"))
    assert stored.reads_in_place(np.lib.stride_tricks.as_strided(np.zeros(1), (2**26,), (0,)))


@pytest.fixture(scope="module")
def arrays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Any]]:
    array = np.arange(60).reshape(30, 2)
    whole = [opened(kind, array, tmp_path_factory.mktemp(kind)) for kind in KINDS[3:]]
    yield [(one, array) for one in whole] + [
        (Part(Part(one, slice(3, 25)), slice(2, None)), array[5:25]) for one in whole
    ]
    whole[0].file.close()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # others use the cores
@given(st.lists(st.integers(0, 19), min_size=1), st.integers(0, 3))
def test_rows_in_any_order(arrays: Any, rows: list[int], which: int) -> None:
    array, expected = arrays[which]
    np.testing.assert_array_equal(read_rows(array, np.array(rows)), expected[rows])


def test_a_part_reads_as_an_array(arrays: Any) -> None:
    for part, expected in arrays[2:]:
        assert (part.shape, part.dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(np.asarray(part), expected)
        np.testing.assert_array_equal(part[4:9], expected[4:9])


def test_a_column_of_another_floatx() -> None:
    keras.config.set_floatx("float64")
    try:
        column = StoredColumn(np.ones((5, 2), "float32"), tf.float64)
        assert column.spec.dtype == "float64"
        assert column.gather(None, np.array([1, 0]), 2).dtype == "float64"
    finally:
        keras.config.set_floatx("float32")
