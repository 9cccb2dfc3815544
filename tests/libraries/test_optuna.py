"""Optuna's trials come to Keras' numbers, and its callback prunes the same ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

optuna = pytest.importorskip("optuna", reason='pip install -e ".[test]"')
integration = pytest.importorskip("optuna_integration.keras", reason='pip install -e ".[test]"')


@pytest.mark.long
def test_a_study_is_that_of_keras(tiny: Any, as_in_keras: Callable[..., Any]) -> None:
    x, y = tiny.data(61)

    def objective(trial: Any) -> float:
        rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
        made = tiny.model(optimizer=keras.optimizers.SGD(rate))
        prunes = integration.KerasPruningCallback(trial, "val_loss")
        options = {"batch_size": 8, "epochs": 3, "shuffle": False, "verbose": 0}
        fit = made.fit(x, y, validation_split=0.3, callbacks=[prunes], **options)
        return float(fit.history["val_loss"][-1])

    def study(folder: Path) -> Any:
        made = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
        for rate in (0.5, 0.001):
            made.enqueue_trial({"rate": rate})
        made.optimize(objective, n_trials=2)
        return [
            {
                "rate": trial.params["rate"],
                "pruned": trial.state.name == "PRUNED",
                "epochs": list(trial.intermediate_values.values()),
            }
            for trial in made.trials
        ]

    found = as_in_keras(study)
    assert [trial["pruned"] for trial in found] == [False, True]
    assert [len(trial["epochs"]) for trial in found] == [3, 1]
