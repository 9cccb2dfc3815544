"""What a step of one's own returns is logged as one device logs it, on several replicas."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import metrics, ops

import kfit

X = np.random.RandomState(0).normal(size=(7, 4)).astype("float32")
Y = X[:, :1] * 2


class Returns(keras.Model):
    """Gives its metrics all that it has, and returns what `values` makes of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = metrics.Mean(name="total_loss")
        self.error = metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self) -> list[keras.Metric]:
        return [self.total, self.error]

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = ops.mean(ops.square(y - y_pred))
        variables = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, variables), variables)
        self.total.update_state(loss)
        self.error.update_state(y, y_pred)
        return self.values(loss, y_pred)

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        raise NotImplementedError


class UnderOtherNames(Returns):
    """Results of metrics under names that are not theirs, as in Keras' example of a VAE."""

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {"loss": self.total.result(), "mae": self.error.result()}


class Copies(Returns):
    """Results of metrics as other tensors of the same number."""

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        copy = ops.reshape(tf.identity(self.error.result()), ())
        return {
            "error": ops.stop_gradient(copy),
            "total_loss": ops.cast(self.total.result(), "float64"),
        }


class UnderMetricsNames(Returns):
    """The values of the batch under names of metrics, which hold other numbers; and counts."""

    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        positive = ops.sum(ops.cast(y_pred > 0, "int32"))
        updates = self.optimizer.iterations + 0
        return {
            "total_loss": 2 * loss,
            "error": self.error.result(),
            "positive": positive,
            "examples": ops.shape(y_pred)[0],
            "updates": updates,
        }


class Percentage(Returns):
    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {"error": 100 * self.error.result()}


class NoMeans(Returns):
    def values(self, loss: Any, y_pred: Any) -> dict[str, Any]:
        return {
            "largest": ops.max(y_pred),
            "sum": ops.sum(y_pred),
            "whole": ops.argmax(y_pred[:, 0]),
            "relative": self.error.result() / (self.total.result() + 1),
            "batch_loss": loss,
        }


def made(cls: type[Returns]) -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    model = cls(x, keras.layers.Dense(1)(x))
    model.compile(keras.optimizers.SGD(0.1))
    return model


@pytest.mark.parametrize(
    ("cls", "eagerly"),
    [
        (UnderOtherNames, False),
        (UnderOtherNames, True),
        (UnderMetricsNames, False),
        (Copies, False),
        (Copies, True),
    ],
)
def test_logs_are_those_of_one_device(tiny: Any, cls: type[Returns], eagerly: bool) -> None:
    options = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = made(cls).fit(X, Y, **options).history
    many = made(cls)
    many.run_eagerly = eagerly
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "With `run_eagerly=True` kfit cannot read")
        got = kfit.Trainer(many, tiny.strategy(2)).fit(X, Y, **options).history

    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_percentage_under_the_name_of_its_metric(tiny: Any, eagerly: bool) -> None:
    model = made(Percentage)
    model.run_eagerly = eagerly
    with pytest.warns(UserWarning, match="returns 'error', computed from results of metrics"):
        history = kfit.Trainer(model, tiny.strategy(2)).fit(X, Y, batch_size=7, verbose=0).history
    expected = made(Percentage).fit(X, Y, batch_size=7, verbose=0).history["error"]
    np.testing.assert_allclose(history["error"], expected, rtol=1e-5)


def test_what_is_no_mean_is_warned_of_by_name(tiny: Any) -> None:
    with pytest.warns() as caught:
        kfit.Trainer(made(NoMeans), tiny.strategy(2)).fit(X, Y, batch_size=4, verbose=0)

    said = {str(each.message).partition(" of the batch,")[0].partition(". ")[0] for each in caught}
    assert said == {
        "The value 'whole' that the step returns is computed from the examples of a replica, and "
        "is neither their number nor a sum over them",
        "The value 'largest' that the step returns is neither a mean nor a sum over the examples",
        "The model's step returns 'relative', computed from results of metrics",
    }
    line = inspect.getsourcelines(NoMeans.train_step)[1]
    values = [each for each in caught if str(each.message).startswith("The value")]
    assert {(each.filename, each.lineno) for each in values} == {(__file__, line)}


class PredictsMore(keras.Model):
    """Predicts rows, deep in a structure of its own, beside numbers of the whole batch."""

    def call(self, x: Any) -> Any:
        return {"deep": {"rows": [x, x * 2]}, "mean": ops.mean(x), "sum": ops.sum(x)}

    def predict_step(self, data: Any) -> Any:
        return {**self(data), "constant": tf.constant(3)}


@pytest.mark.parametrize("replicas", [1, 3])
def test_predictions_keep_their_structure(tiny: Any, replicas: int) -> None:
    model = PredictsMore()
    model.compile()
    predicted = kfit.Trainer(model, tiny.strategy(replicas)).predict(X, batch_size=3, verbose=0)
    batches = [X[:3], X[3:6], X[6:]]
    expected = {
        "deep": {"rows": [X, 2 * X]},
        "mean": np.array([batch.mean() for batch in batches]),
        "sum": np.array([batch.sum() for batch in batches]),
        "constant": np.array([3, 3, 3]),
    }
    keras.tree.map_structure(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=1e-5), predicted, expected
    )
