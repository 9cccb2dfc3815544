"""Losses that are taken between the examples of a batch."""

import warnings
from typing import Any

import keras
import pytest
from keras import layers, losses

import kfit
from tests.exactness.cases.data import labels, numbers
from tests.exactness.cases.models import sgd
from tests.sweeps import only

pytestmark = pytest.mark.usefixtures("ungathered")


@pytest.mark.long
def test_a_loss_between_the_examples_of_a_batch_is_warned_of(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3), layers.UnitNormalization()])
    model.compile(sgd(), losses.Circle())
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.warns(UserWarning, match="'circle'` compares the examples of a batch"):
        trainer.fit(numbers(8, 4), labels(8, 3), batch_size=8, verbose=0)


@pytest.mark.parametrize(
    ("kind", "name", "axis"),
    only(
        [("loss", "CosineSimilarity", 0), ("metrics", "PearsonCorrelation", 0)],
        [
            ("loss", "CosineSimilarity", 0),
            ("loss", "CosineSimilarity", -2),
            ("metrics", "PearsonCorrelation", 0),
            ("metrics", "ConcordanceCorrelation", (0, 1)),
            ("metrics", "CosineSimilarity", -2),
        ],
    ),
)
def test_an_axis_of_the_examples_is_warned_of(tiny: Any, kind: str, name: str, axis: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3)])
    made = getattr(losses if kind == "loss" else keras.metrics, name)(axis=axis)
    compiled = {"loss": made} if kind == "loss" else {"loss": "mse", "metrics": [made]}
    model.compile(sgd(), **compiled)
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.warns(UserWarning, match="compares the examples of a batch with each other"):
        trainer.fit(numbers(8, 4), numbers(8, 3), batch_size=8, verbose=0)


@pytest.mark.parametrize("axis", only([1], [-1, 1]))
def test_another_axis_is_not(tiny: Any, axis: int) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3)])
    metrics = [keras.metrics.PearsonCorrelation(axis=axis), "categorical_crossentropy"]
    model.compile(sgd(), losses.CosineSimilarity(axis=axis), metrics=metrics)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kfit.Trainer(model, tiny.strategy(2)).fit(
            *(numbers(8, 4), numbers(8, 3)), batch_size=8, verbose=0
        )
