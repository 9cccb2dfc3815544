"""TimeLimit, SaveModel, Export and RollBack."""

import itertools
import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.callbacks import (
    BackupAndRestore,
    Export,
    ModelCheckpoint,
    RollBack,
    SaveModel,
    TimeLimit,
)
from kfit.callbacks import time_limit as module
from kfit.checkpoint.store import Store


@pytest.fixture(scope="module", params=[1, 2], ids=["one_replica", "two_replicas"])
def machine(request: Any, training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(request.param))


def test_a_time_limit_interrupts_and_training_goes_on_later(
    machine: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    ticks = itertools.count(0, 1)
    monkeypatch.setattr(module, "time", Clock(ticks))
    backup = BackupAndRestore(tmp_path / "backup")
    ended: list[int] = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: ended.append(epoch),
        on_train_batch_end=lambda batch, logs: None,
    )
    machine.run([TimeLimit(10.0), backup, watch])
    assert machine.trainer.interrupted
    assert ended == [0]
    assert Store(str(tmp_path / "backup")).names()[-1].step > 7
    machine.run([backup, watch])
    assert not machine.trainer.interrupted
    assert ended == [0, 1, 2, 3]
    assert machine.digest == machine.untouched


class Clock:
    """A clock that a test winds."""

    def __init__(self, ticks: Any) -> None:
        self.monotonic = lambda: float(next(ticks))


@pytest.mark.parametrize("limit", [0, -1.0, "1h"])
def test_a_limit_that_is_none(limit: Any) -> None:
    with pytest.raises(ValueError, match="`limit` must be"):
        TimeLimit(limit)


def test_the_model_is_saved_when_training_has_ended(
    machine: Any, training: Any, tmp_path: Any
) -> None:
    saved = [
        SaveModel(tmp_path / "model.keras"),
        SaveModel(tmp_path / "model.weights.h5"),
        Export(tmp_path / "served"),
    ]
    machine.cut_at(3, saved)
    assert os.listdir(tmp_path) == []
    machine.run(saved)
    assert sorted(os.listdir(tmp_path)) == ["model.keras", "model.weights.h5", "served"]
    x, _ = training.data(5)
    expected = machine.model(x)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(loaded(x), expected, atol=1e-6)
    np.testing.assert_allclose(served.serve(x), expected, atol=1e-6)


def test_a_model_is_not_replaced_unasked(tmp_path: Any) -> None:
    (tmp_path / "model.keras").write_text("mine")
    with pytest.raises(ValueError, match="which exists"):
        SaveModel(tmp_path / "model.keras", overwrite=False)
    with pytest.raises(ValueError, match="`filepath` must end in"):
        SaveModel(tmp_path / "model")


def test_what_is_no_model_is_not_replaced_by_one(
    machine: Any, tmp_path: Any, monkeypatch: Any
) -> None:
    """Refused before the first step, by any of the callbacks that save a model."""
    for name in ("serving/1/saved_model.pb", "m.keras/thesis.tex", "here/saved_model.pb"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("mine")
    (tmp_path / "text.keras").write_text("mine")
    monkeypatch.chdir(tmp_path / "here")
    before = sorted(tmp_path.rglob("*"))
    for saving in (
        Export(tmp_path / "serving"),
        Export("."),
        SaveModel(tmp_path / "m.keras"),
        SaveModel(tmp_path / "text.keras"),
        ModelCheckpoint(tmp_path / "m.keras"),
        ModelCheckpoint(tmp_path / "text.keras", save_best_only=True),
    ):
        steps = keras.callbacks.LambdaCallback(on_train_begin=lambda logs: pytest.fail("begun"))
        with pytest.raises(ValueError, match="`filepath` must be a path where nothing is lost"):
            machine.run([saving, steps])
    with pytest.raises(ValueError, match="`filepath` must be a path where nothing is lost"):
        machine.trainer.save(tmp_path / "m.keras")
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "text.keras").read_text() == "mine"


def poisoned(training: Any, *examples: int) -> Any:
    x, y = training.data()
    x[list(examples)] = np.nan
    return x, y


@pytest.mark.parametrize("save_freq", ["epoch", 3])
def test_rolled_back_and_around_the_bad_batch(machine: Any, training: Any, save_freq: Any) -> None:
    """It ends as if the batches had not been in the data."""
    x, y = poisoned(training, 9, 44)
    fit = {"x": x, "y": y, "batch_size": 8, "shuffle": False}
    machine._data, before = (lambda: fit), machine._data
    callback = RollBack(save_freq=save_freq)
    taken: list[int] = []
    watch = keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: taken.append(logs["loss"]))
    with pytest.warns(UserWarning, match="Passing over batch 1 of epoch 0"):
        machine.run([callback, watch], epochs=2)
    got = [v.numpy().copy() for v in machine.model.weights]
    # Batches 1 and 5 are left out in both epochs.
    keep = np.ones(50, bool)
    keep[8:16] = keep[40:48] = False
    clean = {"x": x[keep], "y": y[keep], "batch_size": 8, "shuffle": False}
    machine._data = lambda: clean
    machine.run(epochs=2)
    expected = [v.numpy() for v in machine.model.weights]
    machine._data = before
    # Two bad batches of one execution are found in one go.
    assert 2 <= callback.rollbacks <= 4
    assert np.isfinite(taken).all()
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_skipping_it_gives_up(machine: Any, training: Any) -> None:
    x, y = poisoned(training, 9)
    machine._data, before = (lambda: {"x": x, "y": y, "batch_size": 8}), machine._data
    try:
        with (
            pytest.warns(UserWarning, match="going back to step 0"),
            pytest.raises(RuntimeError, match="went wrong 4 times; `max_rollbacks` is 3"),
        ):
            machine.run([RollBack(skip=False, max_rollbacks=3)])
    finally:
        machine._data = before


def test_on_what_the_user_says(machine: Any) -> None:
    calls: list[Any] = []

    def once(logs: Any) -> bool:
        """Asked once a step."""
        calls.append(logs["loss"])
        return len(calls) == 12

    callback = RollBack(on=once, skip=False)
    with pytest.warns(UserWarning, match="going back to step 7"):
        machine.run([callback, keras.callbacks.LambdaCallback(on_train_batch_end=print_nothing)])
    assert callback.rollbacks == 1
    assert machine.digest == machine.untouched


def print_nothing(batch: int, logs: Any) -> None:
    """Has each step be an execution of its own."""


def test_a_generator_cannot_go_back(machine: Any, training: Any) -> None:
    x, y = poisoned(training, 9)

    def batches() -> Any:
        for start in range(0, 48, 8):
            yield x[start : start + 8], y[start : start + 8]

    machine._data, before = (lambda: {"x": batches()}), machine._data
    try:
        with (
            pytest.warns(UserWarning, match="going back"),
            pytest.raises(ValueError, match="a generator, which cannot go back"),
        ):
            machine.run([RollBack()], epochs=1)
    finally:
        machine._data = before


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"on": "inf"}, "`on` must be"),
        ({"max_rollbacks": 0}, "`max_rollbacks` must be"),
        ({"save_freq": 0}, "`save_freq` must be"),
    ],
)
def test_wrong_arguments(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        RollBack(**arguments)
