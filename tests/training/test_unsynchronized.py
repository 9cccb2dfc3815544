"""A BatchNormalization whose numbers depend on the number of replicas is told of, once."""

from typing import Any

import keras
import pytest

import kfit

TOLD = "normalizes by the rows of each of the 2 replicas, as in Keras"


def normalized(**how: Any) -> keras.Model:
    norm = keras.layers.BatchNormalization(name="norm", **how)
    model = keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    return model


def trained(model: keras.Model, strategy: Any, **how: Any) -> None:
    x = keras.ops.ones((8, 4))
    kfit.fit(model, x, x[:, :3], batch_size=4, strategy=strategy, **how)


def test_it_is_told_once_for_a_model(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    model = normalized()
    trained(model, tiny.strategy(2), verbose=0)
    assert TOLD not in capsys.readouterr().out
    for _ in range(2):
        trained(model, tiny.strategy(2), verbose=2)
    assert capsys.readouterr().out.count(f"kfit: 'norm' of the model {TOLD}") == 1


def test_nothing_is_told_where_the_numbers_are_the_same(
    tiny: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(normalized(synchronized=True), tiny.strategy(2), verbose=2)
    trained(normalized(trainable=False), tiny.strategy(2), verbose=2)
    trained(normalized(), "one_device", verbose=2)
    assert "normalizes by the rows" not in capsys.readouterr().out
