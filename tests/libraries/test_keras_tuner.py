"""KerasTuner searches as with Keras: the same scores, and the same best weights."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

keras_tuner = pytest.importorskip("keras_tuner", reason='pip install -e ".[test]"')

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "programs" / "keras_tuner_search.py"


def build(parameters: Any) -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = parameters.Choice("rate", [0.02, 0.5])
    made.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return made


def test_a_search_is_that_of_keras(tiny: Any, as_in_keras: Callable[..., Any]) -> None:
    x, y = tiny.data(61)

    def search(folder: Path) -> Any:
        tuner = keras_tuner.GridSearch(build, objective="val_loss", directory=folder)
        fit = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        tuner.search(x[:40], y[:40], validation_data=(x[40:], y[40:]), **fit)
        trials = tuner.oracle.get_best_trials(2)
        (best,) = tuner.get_best_models(1)
        rates = [trial.hyperparameters.get("rate") for trial in trials]
        return {"rates": rates, "scores": [t.score for t in trials], "best": best.get_weights()}

    found = as_in_keras(search)
    assert found["rates"] == [0.5, 0.02]
    assert np.diff(found["scores"]) > 0


def test_a_search_with_a_seed_on_workers_that_share_a_folder(
    run_workers: Callable[..., list[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [str(PROGRAM), str(tmp_path / "keras")])
    runpy.run_path(str(PROGRAM))
    lines = run_workers(PROGRAM.name, words=[str(tmp_path / "workers")])
    printed = [line for line in lines if "] found " in line]
    assert len(printed) == 2
    expected = json.loads(capsys.readouterr().out.split("found ")[-1])
    for line in printed:
        found = json.loads(line.split("] found ")[1])
        keras.tree.assert_same_structure(found, expected)
        for one, other in zip(keras.tree.flatten(found), keras.tree.flatten(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
