"""Inputs and targets in each other's place are recognized by their shapes."""

from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.steps.swapped import hint_of_swap
from tests.sweeps import sweep

HINT = r"Are `x` and `y` swapped\?$"


@pytest.mark.parametrize(
    ("taken", "loss", "targets"),
    sweep(
        [
            ((4,), "sparse_categorical_crossentropy", ()),
            ((8, 8), "sparse_categorical_crossentropy", ()),
            ((4,), "sparse_categorical_crossentropy", (1,)),
            ((4,), "categorical_crossentropy", (3,)),
        ]
    ),
)
def test_swapped_data_is_asked_about(taken: Any, loss: str, targets: Any) -> None:
    net = [keras.layers.Flatten(), keras.layers.Dense(3, "softmax")]
    model = keras.Sequential([keras.Input(taken), *net])
    model.compile("sgd", loss)
    x, y = np.ones((8, *taken), "float32"), np.ones((8, *targets), "float32")
    with pytest.raises(ValueError, match=HINT):
        kfit.Trainer(model, "one_device").fit(y, x, verbose=0)


def test_other_data_is_not_asked_about() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])

    def hint(*shapes: Any) -> str:
        return hint_of_swap(model, tuple(keras.KerasTensor(shape) for shape in shapes))

    assert hint((None, 3), (None, 4))
    assert not hint((None, 4), (None, 3))
    assert not hint((None, 2), (None, 4))
    assert not hint((None, 3), (None, 3))
    assert not hint((None, 3))
    assert not hint((4,), ())  # one example in no batch
    two = keras.Model([model.inputs[0], keras.Input((3,))], model.outputs)
    spec = keras.KerasTensor((None, 3)), keras.KerasTensor((None, 4))
    assert not hint_of_swap(two, spec)
