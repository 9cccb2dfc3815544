"""Results of metrics are those of the settings that the metrics have when an epoch has ended."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from tests.sweeps import sweep

X = np.linspace(-1, 1, 64).reshape(16, 4).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


class Scaled(keras.metrics.Mean):
    """Its result depends on a number that callbacks change."""

    scale = 1.0

    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> None:
        super().update_state(p)

    def result(self) -> Any:
        return super().result() * self.scale


class Changes(keras.callbacks.Callback):
    def __init__(self, change: Callable[[int], None]) -> None:
        super().__init__()
        self.change = change

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.change(epoch)


class OwnResults(keras.Sequential):
    beta = 0.0

    def get_metrics_result(self) -> Any:
        return {**super().get_metrics_result(), "beta": self.beta}


def with_metric(metric: keras.metrics.Metric, name: str) -> tuple[keras.Model, Any]:
    """A model with a metric, and a function that sets an attribute of the metric."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=[metric])
    return model, lambda epoch: setattr(metric, name, 1.0 + epoch)


def with_own_results() -> tuple[keras.Model, Any]:
    model = OwnResults([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model, lambda epoch: setattr(model, "beta", float(epoch))


CASES: dict[str, Callable[[], tuple[keras.Model, Any]]] = {
    "own_metric": lambda: with_metric(Scaled(name="scaled"), "scale"),
    "metric_of_keras": lambda: with_metric(
        keras.metrics.FBetaScore(average="micro", threshold=0.5), "beta"
    ),
    "own_results": with_own_results,
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("replicas", sweep([2, 1]))
def test_a_setting_that_a_hook_changes_counts_at_once(tiny: Any, name: str, replicas: int) -> None:
    options: dict[str, Any] = {"shuffle": False, "verbose": 0}

    def trained(trainer_of: Callable[[keras.Model], Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        keras.utils.set_random_seed(1)
        model, change = CASES[name]()
        trainer = trainer_of(model)
        history = trainer.fit(
            X, Y, batch_size=4, epochs=3, callbacks=[Changes(change)], **options
        ).history
        change(5)
        return history, trainer.evaluate(X, Y, verbose=0, return_dict=True)

    expected = trained(lambda model: model)
    found = trained(lambda model: kfit.Trainer(model, tiny.strategy(replicas)))
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for key, values in other.items():
            np.testing.assert_allclose(one[key], values, rtol=1e-5, err_msg=key)


def test_a_result_that_only_python_can_compute_is_not_traced(tiny: Any) -> None:
    class InPython(keras.metrics.Mean):
        def result(self) -> Any:
            return np.float32(2 * np.asarray(super().result()))

    class Model(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return {"loss": super().train_step(data)["loss"] + 0.0, "other": 1.0}

        def compute_metrics(self, x: Any, y: Any, p: Any, sample_weight: Any = None) -> Any:
            self.seen.update_state(p)
            return {"loss": self._loss_tracker.result()}

    model = Model([keras.Input((4,)), keras.layers.Dense(1)])
    model.seen = InPython(name="seen")
    model.compile("sgd", "mse")
    history = kfit.Trainer(model, "one_device").fit(X, Y, verbose=0).history
    assert set(history) == {"loss", "other"}
