"""Which numbers the logs are made of."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.steps.metrics import as_numbers, combine, flat_logs, reset_metrics
from tests.sweeps import only, sweep


def test_dicts_in_logs_are_opened() -> None:
    logs = {"loss": 1, "compiled": {"mae": 2, "inner": {"mse": 3}}}
    assert flat_logs(logs) == {"loss": 1, "mae": 2, "mse": 3}


def test_logs_are_floats_in_the_order_of_their_names() -> None:
    logs = as_numbers({"loss": tf.constant(1.5), "auc": np.float32(0.5), "by_class": np.ones(2)})
    assert list(logs) == ["auc", "by_class", "loss"]
    assert (type(logs["auc"]), type(logs["loss"])) == (float, float)
    assert logs["by_class"].shape == (2,)


class Halves(keras.metrics.Mean):
    """A metric whose result is a dict, as Keras allows though `Mean` declares a tensor."""

    def __init__(self) -> None:
        super().__init__(name="halves")

    def update_state(self, y: Any, y_pred: Any, sample_weight: Any = None) -> None:
        super().update_state(y_pred, sample_weight)

    def result(self) -> dict[str, Any]:  # type: ignore[override]
        mean = super().result()
        return {"upper": mean * 2, "half": mean / 2}


@pytest.mark.parametrize(
    "strategy", sweep(["one_device", kfit.distribute.Mirrored(["CPU:0", "CPU:1"])])
)
def test_a_result_that_is_a_dict_is_logged_as_by_keras(strategy: Any) -> None:
    """The entries stand among the logs, those of the validation with "val_"."""

    def everything(keras_alone: bool) -> list[Any]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        trainer = model if keras_alone else kfit.Trainer(model, strategy)
        trainer.compile("sgd", "mse", metrics=[Halves()])
        x, y = np.arange(27.0).reshape(9, 3) / 27, np.ones((9, 1))
        data = (x[:5], y[:5])
        options: dict[str, Any] = {"batch_size": 6, "verbose": 0}
        history = trainer.fit(x, y, shuffle=False, validation_data=data, **options)
        return [
            history.history,
            trainer.evaluate(x, y, **options),
            trainer.evaluate(x, y, return_dict=True, **options),
            trainer.train_on_batch(x, y),
            trainer.train_on_batch(x, y, return_dict=True),
            trainer.test_on_batch(x, y),
            trainer.test_on_batch(x, y, return_dict=True),
        ]

    for ours, theirs in zip(everything(False), everything(True), strict=True):
        if isinstance(theirs, dict):
            assert set(ours) == set(theirs)
            ours, theirs = [[each[name] for name in theirs] for each in (ours, theirs)]
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_metrics_are_the_logs_where_only_they_are_needed() -> None:
    assert combine(None, {"loss": 1.0, "mae": 2.0}, {}) == {"loss": 1.0, "mae": 2.0}


def test_other_values_of_a_step_are_its_own_but_for_results_of_metrics() -> None:
    outputs = {"loss": 9.0, "norm": 3.0, "error": 9.0}
    metrics = {"loss": 1.0, "mae": 2.0}
    assert combine(outputs, metrics, {}) == outputs
    assert combine({"loss": 9.0, "mae": 9.0}, metrics, {}) == {"loss": 9.0, "mae": 9.0}
    found = combine(outputs, metrics, {"loss": "loss", "error": "mae"})
    assert found == {"loss": 1.0, "norm": 3.0, "error": 2.0}


def test_what_is_computed_from_results_is_told() -> None:
    with pytest.warns(UserWarning, match="returns 'ratio', computed from results of metrics"):
        found = combine({"ratio": 9.0}, {"loss": 1.0}, {"ratio": ""})
    assert found == {"ratio": 9.0}


class Longest(keras.metrics.Mean):
    """A mean that also keeps the largest value it has seen, over all epochs."""

    def __init__(self) -> None:
        super().__init__(name="longest")
        self.largest = self.add_variable((), "zeros", name="largest")

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        super().update_state(keras.ops.ones(3))
        self.largest.assign(7.0)


class Total(keras.metrics.Sum):
    """A sum of the errors."""

    def update_state(self, y: Any, outputs: Any, sample_weight: Any = None) -> None:
        super().update_state(y - outputs, sample_weight)


class FromOne(keras.metrics.Metric):
    """A metric that counts from 1, and counts in Python how often it was reset."""

    resets = 0

    def __init__(self) -> None:
        super().__init__(name="from_one")
        self.count = self.add_variable((), "ones", name="count")

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        self.count.assign_add(1.0)

    def result(self) -> Any:
        return keras.ops.convert_to_tensor(self.count)

    def reset_state(self) -> None:
        self.resets += 1
        self.count.assign(1.0)


@pytest.mark.parametrize("built", [False, True])
def test_metrics_are_reset_as_by_keras(built: bool) -> None:
    metrics = ["mae", keras.metrics.AUC(), Total(), Longest(), FromOne()]
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "mse", metrics=metrics)
    if built:
        model.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0)
    before = metrics[-1].resets
    reset_metrics(model)
    ours = [variable.numpy() for metric in model.metrics for variable in metric.variables]
    resets = metrics[-1].resets - before
    model.reset_metrics()
    theirs = [variable.numpy() for metric in model.metrics for variable in metric.variables]
    assert resets == built
    assert len(ours) == len(theirs)
    assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))
    if built:
        assert float(metrics[-2].largest) == 7.0


def test_a_models_own_reset_is_called() -> None:
    class Own(keras.Sequential):
        resets = 0

        def reset_metrics(self) -> None:
            self.resets += 1

    model = Own([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    reset_metrics(model)
    assert model.resets == 1


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


@pytest.mark.parametrize("name", only(["own_results"], CASES))
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


class ReturnsAResult(keras.Sequential):
    """Its step returns a metric's result; what Python makes of it is for the ends of epochs."""

    def train_step(self, data: Any) -> Any:
        self.metrics[0].update_state(self(data[0]) - data[1])
        return {"mine": self.metrics[0].result()}

    def get_metrics_result(self) -> Any:
        return {"loss": 10.0 * float(self.metrics[0].result())}


@pytest.mark.long
def test_a_result_that_a_step_returns_is_not_that_of_python(tiny: Any) -> None:
    options: dict[str, Any] = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    histories = []
    for fit_of in (lambda model: model, lambda model: kfit.Trainer(model, tiny.strategy(2))):
        keras.utils.set_random_seed(1)
        model = ReturnsAResult([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        histories.append(fit_of(model).fit(X, Y, **options).history)
    assert list(histories[0]) == list(histories[1]) == ["mine"]
    np.testing.assert_allclose(histories[0]["mine"], histories[1]["mine"], rtol=1e-5)
