"""What a replica makes of the losses that a program takes."""

from typing import Any

import keras
from keras import layers

import kfit
from tests.exactness.cases.data import numbers


def test_a_loss_may_return_a_number_of_python(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Rescaling(2.0)])
    model.compile("sgd", lambda y, y_pred: 0.25)
    x = numbers(7, 4)
    history = kfit.Trainer(model, tiny.strategy(2)).fit(x, x, verbose=0).history
    assert history["loss"] == [0.25]
