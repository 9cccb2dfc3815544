"""What a replica makes of the losses that a program takes."""

import warnings
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import kfit
from tests.exactness.cases.data import numbers


def test_a_loss_may_return_a_number_of_python(tiny: Any) -> None:
    model = keras.Sequential([layers.Input((4,)), layers.Rescaling(2.0)])
    model.compile("sgd", lambda y, y_pred: 0.25)
    x = numbers(7, 4)
    history = kfit.Trainer(model, tiny.strategy(2)).fit(x, x, verbose=0).history
    assert history["loss"] == [0.25]


@pytest.mark.parametrize("eagerly", [False, True])
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
