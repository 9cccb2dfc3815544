"""Data of other libraries trains as its arrays do, and training resumes on it after a failure."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grain
import keras
import numpy as np
import pandas as pd
import polars as pl
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only, sweep

ROWS, BATCH = 70, 8
STEPS = 9
"""The number of batches of a pass; the last one has 6 examples."""


def arrays() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(0)
    return draw.normal(size=(ROWS, 5)).astype("float32"), draw.integers(0, 3, ROWS)


class Pairs:
    """A source with random access, as torch's and grain's loaders take it."""

    def __init__(self) -> None:
        self.x, self.y = arrays()

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        return self.x[index], self.y[index]

    def __repr__(self) -> str:  # grain's loader compares it when it restores a state
        return "Pairs()"


def grain_map() -> Any:
    return grain.MapDataset.source(Pairs()).batch(BATCH)


def grain_iter() -> Any:
    return grain_map().to_iter_dataset()


def grain_loader() -> Any:
    sampler = grain.samplers.IndexSampler(
        ROWS, shuffle=False, seed=1, num_epochs=1, shard_options=grain.sharding.NoSharding()
    )
    batch = grain.transforms.Batch(BATCH)
    return grain.DataLoader(data_source=Pairs(), sampler=sampler, operations=[batch])


def hugging_face() -> Any:
    """Imports Hugging Face's `datasets`, which a folder of this repository hides at its root."""
    here = str(Path(__file__).parents[2])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [p for p in sys.path if Path(p or ".").resolve() != Path(here)])
        if not hasattr(sys.modules.get("datasets"), "Dataset"):
            patch.delitem(sys.modules, "datasets", raising=False)
        return importlib.import_module("datasets")


def hugging_face_dataset() -> Any:
    x, y = arrays()
    return hugging_face().Dataset.from_dict({"x": x, "y": y}).with_format("numpy")


_kept: list[Any] = []


def hugging_face_pipeline() -> tf.data.Dataset:
    _kept.append(hugging_face_dataset())  # the library empties it when its pipeline is deleted
    made = _kept[-1].to_tf_dataset(columns="x", label_cols="y", batch_size=BATCH, shuffle=False)
    options = tf.data.Options()  # each pass begins anew, as docs/fault_tolerance.md says
    options.experimental_external_state_policy = tf.data.experimental.ExternalStatePolicy.IGNORE
    return made.with_options(options)


def torch_loader() -> Any:
    data = pytest.importorskip("torch.utils.data", reason='pip install -e ".[bench]"')
    return data.DataLoader(Pairs(), batch_size=BATCH)


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """The address of a tf.data service of this process."""
    api = tf.data.experimental.service
    dispatcher = api.DispatchServer()
    address = dispatcher.target.partition("://")[2]
    worker = api.WorkerServer(api.WorkerConfig(dispatcher_address=address))
    yield dispatcher.target
    worker._stop()
    dispatcher._stop()


LIBRARIES = ["map", "iter", "loader", "hugging_face", "torch", "service"]


@pytest.fixture(params=LIBRARIES)
def make(request: pytest.FixtureRequest) -> Callable[[], Any]:
    """Makes data of a library, each time anew as a restarted program does."""
    if request.param == "service":
        address = request.getfixturevalue("service")
        how = tf.data.experimental.service.distribute("parallel_epochs", address)
        return lambda: tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH).apply(how)
    made: Callable[[], Any] = {
        "map": grain_map,
        "iter": grain_iter,
        "loader": grain_loader,
        "hugging_face": hugging_face_pipeline,
        "torch": torch_loader,
    }[request.param]
    return made


def model() -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    made.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return made


def of_arrays(**options: Any) -> tuple[list[float], keras.Model]:
    made = model()
    history = made.fit(*arrays(), batch_size=BATCH, shuffle=False, verbose=0, **options).history
    return history["loss"], made


@pytest.mark.parametrize("make", only(["iter", "torch"], LIBRARIES), indirect=True)
@pytest.mark.parametrize("replicas", sweep([2, 1]))
def test_trains_like_its_arrays(tiny: Any, make: Any, replicas: int) -> None:
    expected, one = of_arrays(epochs=2)
    many = model()
    trainer = kfit.Trainer(many, tiny.strategy(replicas))
    assert trainer.fit(make(), epochs=2, verbose=0).history["loss"] == pytest.approx(expected)
    assert tiny.distance(one, many) < 1e-5
    score = one.evaluate(*arrays(), batch_size=BATCH, verbose=0)
    assert trainer.evaluate(make(), verbose=0) == pytest.approx(score)


class Counts(keras.callbacks.Callback):
    """Counts steps, and raises an error in the one of a number."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.steps, self.fails_at = 0, fails_at

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps == self.fails_at:
            raise OSError("the disk is full")


@pytest.mark.long
@pytest.mark.parametrize("make", only(["iter", "torch"], LIBRARIES), indirect=True)
def test_training_resumes_within_the_second_epoch(tiny: Any, make: Any, tmp_path: Path) -> None:
    expected, one = of_arrays(epochs=3)

    def fit(trained: keras.Model, counts: Counts) -> list[float]:
        backup = kfit.callbacks.BackupAndRestore(tmp_path, save_freq=1)
        trainer = kfit.Trainer(trained, "one_device")
        history = trainer.fit(make(), epochs=3, verbose=0, callbacks=[backup, counts]).history
        return history["loss"]  # type: ignore[no-any-return]

    with pytest.raises(OSError, match="the disk is full"):
        fit(model(), Counts(STEPS + 5))
    many, counts = model(), Counts()
    losses = fit(many, counts)
    assert counts.steps == 3 * STEPS  # it was 13 in the snapshot, that of the step before
    assert losses == pytest.approx(expected)
    assert tiny.distance(one, many) < 1e-5


def test_it_is_said_that_a_service_keeps_no_order(service: str, tmp_path: Path) -> None:
    how = tf.data.experimental.service.distribute("parallel_epochs", service)
    pipeline = tf.data.Dataset.from_tensor_slices(arrays()).batch(BATCH).apply(how)
    backup = kfit.callbacks.BackupAndRestore(tmp_path)
    with pytest.warns(UserWarning, match=r"has `tf\.data\.experimental\.service\.distribute`"):
        kfit.fit(model(), pipeline, verbose=0, callbacks=[backup], strategy="one_device")


FRAMES = {
    "pandas": pd.DataFrame,
    "pandas, types with missing values": lambda x: pd.DataFrame(x).convert_dtypes(),
    "pandas, of pyarrow": lambda x: pd.DataFrame(x).convert_dtypes(dtype_backend="pyarrow"),
    "pandas, of several types": lambda x: pd.DataFrame(x).astype({0: "float64", 1: "Float32"}),
    "polars": pl.DataFrame,
    "pyarrow": lambda x: __import__("pyarrow").table(pd.DataFrame(x)),
}


@pytest.mark.parametrize("kind", only(["pandas, of several types"], FRAMES))
def test_frames_train_like_their_arrays(tiny: Any, kind: str) -> None:
    expected, one = of_arrays(epochs=2, validation_split=0.2)
    (x, y), many = arrays(), model()
    series = pd.Series(y).convert_dtypes(dtype_backend="pyarrow") if "pyarrow" in kind else y
    options = {"batch_size": BATCH, "shuffle": False, "epochs": 2, "verbose": 0}
    trainer = kfit.Trainer(many, "one_device")
    history = trainer.fit(FRAMES[kind](x), series, validation_split=0.2, **options).history
    assert history["loss"] == pytest.approx(expected)
    assert tiny.distance(one, many) < 1e-5


@pytest.mark.long
def test_what_is_no_array_is_named(tiny: Any) -> None:
    x, y = arrays()
    columns = r"(?s)`x` must be arrays.*pass columns.*to_tf_dataset.*Received: Dataset"
    with pytest.raises(ValueError, match=columns):
        kfit.fit(model(), hugging_face_dataset(), strategy="one_device")
    missing = pd.DataFrame({"a": pd.array([1, None] * 35, dtype="Int64")})
    with pytest.raises(ValueError, match=r"`x` cannot be made into a tensor: .*missing values"):
        kfit.fit(model(), missing, y, strategy="one_device")
    with pytest.raises(ValueError, match=r"`y` must be an array.* np\.array\(y\)"):
        kfit.fit(model(), x, __import__("pyarrow").array(y), strategy="one_device")
