"""What a replica makes of the losses that a program takes."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import kfit
from tests.exactness.cases.data import numbers
from tests.sweeps import only

pytestmark = pytest.mark.usefixtures("ungathered")


def test_a_loss_may_return_a_number_of_python(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Rescaling(2.0)])
    model.compile("sgd", lambda y, y_pred: 0.25)
    x = numbers(7, 4)
    history = kfit.Trainer(model, tiny.strategy(2)).fit(x, x, verbose=0).history
    assert history["loss"] == [0.25]


class Weighs(keras.Model):
    """Passes its losses one weight for all examples of a batch."""

    def __init__(self, weight: Any) -> None:
        super().__init__()
        self.dense = layers.Dense(2, kernel_initializer="ones")
        self.weight = weight

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def compute_loss(
        self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        weight = self.weight(y)
        return sum(
            keras.losses.MeanSquaredError(each)(y, y_pred, sample_weight=weight)
            for each in ("mean_with_sample_weight", "sum", "sum_over_batch_size")
        )


def trained_with(weight: Any, trainer: Any) -> Any:
    x = numbers(7, 4)
    model = Weighs(weight)
    model.compile(keras.optimizers.SGD(0.01))
    options: dict[str, Any] = {"batch_size": 7, "epochs": 2, "verbose": 0}
    return trainer(model).fit(x, x[:, :2], **options).history["loss"]


@pytest.mark.parametrize(
    "weight",
    [
        pytest.param(lambda y: 0.5, marks=pytest.mark.long),
        lambda y: ops.cast(ops.shape(y)[0], "float32"),
        pytest.param(lambda y: ops.array([0.5]), marks=pytest.mark.long),
        pytest.param(lambda y: 1.0 + ops.abs(y[:, 0]), marks=pytest.mark.long),
        # As the warning advises.
        lambda y: ops.max(tf.distribute.get_replica_context().all_gather(y, axis=0)),
    ],
    ids=["number", "examples", "vector", "of_each", "largest_of_all"],
)
def test_weights_are_those_of_one_device(tiny: Any, weight: Any) -> None:
    expected = trained_with(weight, lambda model: model)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*replicas.*")
        got = trained_with(weight, lambda model: kfit.Trainer(model, tiny.strategy(2)))
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_one_weight_that_no_replica_knows_is_warned_of(tiny: Any) -> None:
    message = "The `sample_weight` of a loss has no value for each.*as a maximum needs"
    with pytest.warns(UserWarning, match=message):
        trained_with(ops.max, lambda model: kfit.Trainer(model, tiny.strategy(2)))


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (lambda y: y[:, 0] / ops.sum(y[:, 0]), "combines the examples of the batch"),
        pytest.param(
            lambda y: y[:, 0] / ops.cast(ops.shape(y)[0], "float32"),
            "for each example depends on",
            marks=pytest.mark.long,
        ),
    ],
    ids=["parts_of_the_sum", "by_number"],
)
def test_weights_of_examples_that_depend_on_others_are_warned_of(
    tiny: Any, weight: Any, message: str
) -> None:
    with pytest.warns(UserWarning, match=f"The `sample_weight` of a loss {message}"):
        trained_with(weight, lambda model: kfit.Trainer(model, tiny.strategy(2)))


@pytest.mark.parametrize("eagerly", only([True], [False, True]))
def test_one_number_for_the_batch_has_no_weights_of_examples(tiny: Any, eagerly: bool) -> None:
    x, weights = numbers(8, 4), np.arange(1.0, 9.0)

    def train(loss: Any, layer: Any = layers.Dense) -> None:
        model = keras.Sequential([layers.Input((4,)), layer(4)])
        model.compile("sgd", loss, run_eagerly=eagerly)
        data = {"sample_weight": weights, "batch_size": 8}
        kfit.Trainer(model, tiny.strategy(2)).fit(x, x, verbose=0, **data)

    said = "one number for the batch, so that `sample_weight` or `class_weight` do not weight"
    with pytest.warns(UserWarning, match=said):
        train(lambda y, y_pred: ops.mean(ops.square(y - y_pred)))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=f".*{said}")
        train(lambda y, y_pred: ops.mean(ops.square(y - y_pred), axis=-1))
        if not eagerly:
            train(lambda y, y_pred: 0.25, layers.Rescaling)
