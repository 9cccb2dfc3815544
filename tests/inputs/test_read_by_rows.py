"""Columns of Hugging Face data sets and frames of polars train as their arrays, read by rows."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import polars as pl
import pytest
import tensorflow as tf

import kfit
from kfit.inputs import as_batches, stored
from kfit.inputs.read_by_rows import ReadByRows, columns_as_arrays, of_polars
from tests.sweeps import only

ROWS, BATCH = 47, 8


@pytest.fixture(scope="module")
def hugging_face() -> Any:
    """Hugging Face's `datasets`, which a folder of this repository hides at its root."""
    here = Path(__file__).parents[2]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != here])
        if not hasattr(sys.modules.get("datasets"), "Dataset"):
            patch.delitem(sys.modules, "datasets", raising=False)
        return pytest.importorskip("datasets")


@pytest.fixture
def in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of more than 100 bytes count as large."""
    monkeypatch.setattr(stored, "COPIED", 100)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(ROWS, 4)), draw.integers(0, 3, ROWS)


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def numbers(x: Any, y: Any, strategy: Any) -> list[float]:
    """Returns what training, evaluation and prediction on the data come to."""
    trainer = kfit.Trainer(model(), strategy)
    options = {"batch_size": BATCH, "epochs": 2, "validation_split": 0.2, "verbose": 0}
    history = trainer.fit(x, y, **options).history
    score = trainer.evaluate(x, y, batch_size=BATCH, verbose=0)
    total = float(np.abs(trainer.predict(x, batch_size=BATCH, verbose=0)).sum())
    return [*history["loss"], *history["val_loss"], score, total]


def columns(hugging_face: Any) -> tuple[Any, Any]:
    x, y = arrays()
    data = hugging_face.Dataset.from_dict({"x": x, "y": y})
    return data["x"], data["y"]


def shuffled_columns(hugging_face: Any) -> tuple[Any, Any]:
    """The rows are in their order through a table of indices, as after `shuffle` or `filter`."""
    x, y = arrays()
    order = np.random.default_rng(1).permutation(ROWS)
    data = hugging_face.Dataset.from_dict({"x": x[order], "y": y[order]}).with_format("numpy")
    back = data.select(np.argsort(order))
    return back["x"], back["y"]


def columns_of_torch(hugging_face: Any) -> tuple[Any, Any]:
    pytest.importorskip("torch", reason='pip install -e ".[bench]"')
    x, y = arrays()
    data = hugging_face.Dataset.from_dict({"x": x, "y": y}).with_format("torch")
    return data["x"], data["y"]


def frames(hugging_face: Any) -> tuple[Any, Any]:
    x, y = arrays()
    return pl.DataFrame(x), pl.Series(y)


@pytest.mark.long
@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize(
    "make", [columns, shuffled_columns, columns_of_torch, frames], ids=lambda make: make.__name__
)
def test_the_numbers_are_those_of_the_arrays(
    tiny: Any, hugging_face: Any, make: Callable[[Any], tuple[Any, Any]]
) -> None:
    expected = numbers(*arrays(), tiny.strategy(2))
    assert numbers(*make(hugging_face), tiny.strategy(2)) == expected


def test_small_columns_are_copied(tiny: Any, hugging_face: Any) -> None:
    expected = numbers(*arrays(), tiny.strategy(1))
    assert numbers(*columns(hugging_face), tiny.strategy(1)) == expected


@pytest.mark.usefixtures("in_place")
@pytest.mark.parametrize("shuffle", only([True], [True, False]))
def test_only_the_rows_of_a_batch_are_read_at_once(hugging_face: Any, shuffle: bool) -> None:
    x, y = arrays()
    read = []

    def transform(batch: Any) -> Any:
        read.append(len(batch["x"]))
        return {"x": 2 * np.array(batch["x"]), "y": batch["y"]}

    data = hugging_face.Dataset.from_dict({"x": x, "y": y}).with_transform(transform)
    trainer = kfit.Trainer(model(), "one_device", seed=3)
    options = {"batch_size": BATCH, "shuffle": shuffle, "epochs": 2, "verbose": 0}
    losses = trainer.fit(data["x"], y, **options).history["loss"]
    again = kfit.Trainer(model(), "one_device", seed=3).fit(2 * x, y, **options)
    assert losses == pytest.approx(again.history["loss"])
    assert max(read) == BATCH
    assert len(read) > ROWS // BATCH


def test_structures_of_columns_and_other_arrays(hugging_face: Any) -> None:
    x, y = arrays()
    data = hugging_face.Dataset.from_dict({"a": x[:, 0], "b": [{"c": value} for value in x[:, 1]]})
    given = {"a": data["a"], "b": data["b"]["c"], "whole": x}
    made = columns_as_arrays((given, y, None))
    assert made[1] is y
    assert made[0]["whole"] is x
    np.testing.assert_allclose(made[0]["b"][...], x[:, 1], rtol=1e-6)
    batches = as_batches(given, y, batch_size=BATCH, strategy=kfit.distribute.OneDevice())
    assert batches.spec[0]["a"].shape == (None,)


def test_text_is_copied(hugging_face: Any) -> None:
    words = ["a", "three", "of them"] * 5
    column = hugging_face.Dataset.from_dict({"text": words})["text"]
    strategy = kfit.distribute.OneDevice()
    element = next(as_batches(column, batch_size=4, strategy=strategy).segments(0)).next_element()
    assert element[0].dtype == tf.string
    assert element[0].numpy().tolist() == [b"a", b"three", b"of them", b"a"]


@pytest.mark.parametrize(
    "values", [[1, 2, None, 4] * 5, [[1.0], [1.0, 2.0]] * 10], ids=["missing", "lengths"]
)
def test_rows_that_differ_are_named(hugging_face: Any, values: list[Any]) -> None:
    column = hugging_face.Dataset.from_dict({"x": values})["x"]
    with pytest.raises(ValueError, match=r"`x` cannot be made .*all rows must be like the first"):
        kfit.fit(model(), column, np.zeros(20), strategy="one_device")


def test_missing_integers_of_a_frame_are_not_numbers() -> None:
    frame = of_polars(pl.DataFrame({"a": [1, 2, None], "b": [1.0, 2.0, 3.0]}))
    np.testing.assert_array_equal(frame[np.array([0, 2])], [[1, 1], [np.nan, 3]])
    series = of_polars(pl.Series([1, None, 3]))
    assert series[np.array([0])].dtype == series.dtype == np.dtype("float64")


def test_it_reads_as_an_array() -> None:
    array = np.arange(12).reshape(6, 2)
    by_rows = ReadByRows(lambda rows: array[rows], 6)
    assert (by_rows.shape, by_rows.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(np.asarray(by_rows), array)
    np.testing.assert_array_equal(by_rows.oindex[np.array([1, 4])], array[[1, 4]])
