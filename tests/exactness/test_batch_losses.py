"""Losses that are taken between the examples of a batch."""

from typing import Any

import keras
import pytest
from keras import layers, losses

import kfit
from tests.exactness.cases.data import labels, numbers
from tests.exactness.cases.models import sgd


def test_a_loss_between_the_examples_of_a_batch_is_warned_of(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Dense(3), layers.UnitNormalization()])
    model.compile(sgd(), losses.Circle())
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.warns(UserWarning, match="'circle' compares the examples of a batch"):
        trainer.fit(numbers(8, 4), labels(8, 3), batch_size=8, verbose=0)
