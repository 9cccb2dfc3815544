"""What workers begin from is compared where a callback may have changed it, and only there."""

from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest

from kfit.callbacks import BackupAndRestore
from kfit.training import beginning


class Loads(keras.callbacks.EarlyStopping):
    def on_train_begin(self, logs: Any = None) -> None:
        pass


class Restores(keras.callbacks.BackupAndRestore):
    """A subclass of what restores."""


def training_with(tiny: Any, *callbacks: Any) -> Any:
    def views(own: Any) -> Any:
        return np.asarray([own, own], "float64")

    return SimpleNamespace(
        progress=SimpleNamespace(epoch=0),
        model=tiny.model(),
        strategy=SimpleNamespace(
            host_collectives=SimpleNamespace(is_alone=False, all_gather=views)
        ),
        resuming=None,
        callbacks=callbacks,
        epochs=1,
    )


@pytest.mark.parametrize("restores", [False, True])
def test_weights_are_read_only_where_a_callback_may_have_changed_them(
    tiny: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, restores: bool
) -> None:
    taken: list[int] = []

    def take(variables: Any, *others: Any) -> Any:
        taken.append(len(variables))
        return [variable.numpy() for variable in variables]

    monkeypatch.setattr(beginning.variable_values, "get_values", take)
    if restores:
        callbacks = [
            Loads(),
            Restores(tmp_path / "keras"),
            keras.callbacks.LambdaCallback(on_train_begin=print),
        ]
    else:
        callbacks = [
            keras.callbacks.History(),
            keras.callbacks.EarlyStopping(),
            keras.callbacks.LambdaCallback(on_epoch_end=print),
            BackupAndRestore(tmp_path / "kfit"),
        ]
    for callback in callbacks:
        beginning.agree_on_beginning(training_with(tiny, callback))
    assert len(taken) == (len(callbacks) if restores else 0)
