"""SaveModel and Export save when training has ended, and replace nothing unasked."""

import os
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.callbacks import Export, ModelCheckpoint, SaveModel
from tests.sweeps import only, sweep


@pytest.fixture(scope="module", params=sweep([1, 2]), ids=["one_replica", "two_replicas"])
def machine(request: Any, training: Any, tiny: Any) -> Any:
    return training.Machine(tiny.strategy(request.param))


@pytest.mark.parametrize("exports", only([False], [False, True]))
def test_the_model_is_saved_when_training_has_ended(
    machine: Any, training: Any, tmp_path: Any, exports: bool
) -> None:
    names = ["model.keras", "model.weights.h5"]
    saved: list[Any] = [SaveModel(tmp_path / name) for name in names]
    if exports:
        names.append("served")
        saved.append(Export(tmp_path / "served"))
    machine.cut_at(3, saved)
    assert os.listdir(tmp_path) == []
    machine.run(saved)
    assert sorted(os.listdir(tmp_path)) == names
    x, _ = training.data(5)
    expected = machine.model(x)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded(x), expected, atol=1e-6)
    if exports:
        served = tf.saved_model.load(str(tmp_path / "served"))
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
