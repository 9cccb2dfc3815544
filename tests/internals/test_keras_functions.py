"""What stands where Keras keeps the functions that it has traced."""

from typing import Any

import keras
import numpy as np
import pytest

from kfit.internals.keras_functions import functions_forgotten, mark_of_function

X = np.ones((8, 2), "float32")


def made(cls: type[keras.Model] = keras.Model) -> keras.Model:
    inputs = keras.Input((2,))
    model = cls(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    return model


def marks(model: keras.Model) -> list[Any]:
    return [mark_of_function(model, f"{kind}_step") for kind in ("train", "test", "predict")]


@pytest.mark.long
def test_a_mark_changes_only_when_keras_would_trace_the_step_anew() -> None:
    model = made()
    first = marks(model)
    model.fit(X, X[:, :1], verbose=0)
    model.evaluate(X, X[:, :1], verbose=0)
    model.predict(X, verbose=0)
    model.make_train_function()
    assert marks(model) == first
    model.make_train_function(force=True)
    second = marks(model)
    assert [a == b for a, b in zip(first, second, strict=True)] == [False, True, True]
    model.fit(X, X[:, :1], verbose=0)
    assert marks(model) == second
    model.test_function = None
    third = marks(model)
    assert [a == b for a, b in zip(second, third, strict=True)] == [True, False, True]
    model.compile("sgd", "mse")
    assert not any(a == b for a, b in zip(third, marks(model), strict=True))


def test_functions_that_keras_made_in_the_context_are_made_anew_after_it() -> None:
    model = made()
    model.evaluate(X, X[:, :1], verbose=0)
    before = model.test_function
    with functions_forgotten(model):
        mark = mark_of_function(model, "train_step")
        model.fit(X, X[:, :1], verbose=0)
        model.predict(X, verbose=0)
        predicts = mark_of_function(model, "predict_step")
        trains = model.train_function.made
    assert model.test_function is before
    assert mark_of_function(model, "train_step") == mark
    assert mark_of_function(model, "predict_step") == predicts
    model.fit(X, X[:, :1], verbose=0)
    assert model.train_function.made not in (None, trains)


class MakesItsOwn(keras.Model):
    def make_train_function(self) -> Any:  # without `force`
        super().make_train_function()


def test_what_a_model_makes_by_itself_has_no_stand_in() -> None:
    model = made(MakesItsOwn)
    assert mark_of_function(model, "train_step") is None
    assert model.train_function is None
    with functions_forgotten(model):
        model.make_train_function()
        assert mark_of_function(model, "train_step") is not None
    assert model.train_function is None
