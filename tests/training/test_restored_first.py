"""A snapshot is restored before a model's own `evaluate` is called."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest

import kfit


class Predicts(keras.Sequential):
    """Evaluates without `super().evaluate`, or with other weights than the model has."""

    def evaluate(self, x: Any = None, y: Any = None, *, extra: float = 0.0, **kwargs: Any) -> Any:
        batches = list(x) if isinstance(x, Iterator) else [(x, y)]
        errors = [self.predict(a, verbose=0) - b for a, b in batches]
        self.layers[0].kernel.assign(2 * self.layers[0].kernel)
        doubled = super().evaluate(*batches[0], verbose=0)
        self.layers[0].kernel.assign(self.layers[0].kernel / 2)
        return {"loss": float(np.mean(np.square(errors))) + extra, "doubled": doubled}


def test_a_snapshot_is_restored_before_an_own_evaluate_runs(tmp_path: Any) -> None:
    x = np.random.default_rng(0).normal(size=(20, 2)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    model = Predicts([keras.Input((2,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("adam", "mse")
    trainer = kfit.Trainer(model, "one_device")
    backup = kfit.callbacks.BackupAndRestore(tmp_path, delete_checkpoint=False)
    trainer.fit(x, y, verbose=0, callbacks=[backup])
    expected = trainer.evaluate(x, y, extra=1.0)
    snapshot, _ = kfit.checkpoint.Store(tmp_path).newest()
    halves = ((x[i : i + 10], y[i : i + 10]) for i in (0, 10))
    for data in ({"x": x, "y": y}, {"x": halves}):
        model.layers[0].kernel.assign([[5.0], [5.0]])
        parts = ("model", "optimizer")
        found = trainer.evaluate(**data, extra=1.0, snapshot=snapshot, parts=parts)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-6)
        if "y" in data:
            assert found == expected
