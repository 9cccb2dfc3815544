"""Keras' methods can be diverted, and are Keras' own again, in whatever order it ends."""

from typing import Any

import keras
import numpy as np
import pytest

from kfit.internals.keras_methods import METHODS, diverted, own_method, passing_on


def diverting(word: str, of: Any = None) -> Any:
    def divert(model: Any, name: str) -> Any:
        return (lambda *args, **kwargs: (word, name)) if of in (None, model) else None

    return divert


@pytest.mark.parametrize("name", METHODS)
def test_the_last_one_is_asked_first(name: str) -> None:
    one, two = keras.Sequential(), keras.Sequential()
    original = getattr(keras.Model, name)
    first, second = diverted(diverting("first")), diverted(diverting("second", two))
    first.__enter__()
    second.__enter__()
    assert getattr(one, name)(1) == ("first", name)
    assert getattr(two, name)(1) == ("second", name)
    assert own_method(one, name) is None
    first.__exit__(None, None, None)
    assert getattr(two, name)(1) == ("second", name)
    one.add(keras.layers.Dense(1))
    one.compile("sgd", "mse")
    x = np.ones((4, 1))
    getattr(one, name)(*([x] if name.startswith("predict") else [x, x]))
    assert one.built
    second.__exit__(None, None, None)
    assert getattr(keras.Model, name) is original


def test_own_methods() -> None:
    class Own(keras.Model):
        def fit(self, *args: Any) -> str:
            return "own"

    class PassesOn(keras.Model):
        @passing_on
        def fit(self, *args: Any) -> Any:
            return super().fit(*args)

    class OwnOfPassesOn(PassesOn):
        def evaluate(self, *args: Any) -> str:
            return "own"

    own = own_method(Own(), "fit")
    assert own is not None
    assert own() == "own"
    assert own_method(Own(), "predict") is None
    assert own_method(PassesOn(), "fit") is None
    assert own_method(OwnOfPassesOn(), "fit") is None
    assert own_method(OwnOfPassesOn(), "evaluate") is not None
    model = keras.Sequential()
    object.__setattr__(model, "fit", lambda: "of the object")
    own = own_method(model, "fit")
    assert own is not None
    assert own() == "of the object"
