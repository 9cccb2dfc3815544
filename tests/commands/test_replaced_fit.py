"""Every `fit` comes to one function while it is replaced, and afterwards to its own again."""

from typing import Any, NoReturn

import keras
import numpy as np
import pytest

import kfit
from kfit.commands.replaced_fit import replaced_fit


class RefusedError(Exception):
    pass


class Doubles(keras.Model):
    """A model whose own `fit` prepares the data."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs)

    def fit(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        return super().fit(2 * x, *args, **kwargs)


def test_every_fit_is_replaced_for_a_while() -> None:
    given: list[Any] = []

    def fit(trainer: kfit.Trainer, x: Any, *_: Any, **__: Any) -> NoReturn:
        given.append(np.max(x))
        raise RefusedError

    x = np.ones((4, 2), "float32")
    model = Doubles()
    model.compile("sgd", "mse")
    with replaced_fit(fit), kfit.install("one_device"):
        for train in (model.fit, lambda *data: kfit.fit(model, *data), kfit.Trainer(model).fit):
            with pytest.raises(RefusedError):
                train(x, x[:, :1])
    assert given == [2, 2, 2]
    history = kfit.fit(model, x, x[:, :1], strategy="one_device", verbose=0)
    assert len(history.history["loss"]) == 1
