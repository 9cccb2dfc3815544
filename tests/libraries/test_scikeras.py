"""SciKeras' classifier trains as with Keras."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import kfit

scikeras = pytest.importorskip("scikeras.wrappers", reason='pip install -e ".[test]"')


def build(meta: dict[str, Any]) -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(meta["n_classes_"], activation="softmax")]
    return keras.Sequential([keras.Input((meta["n_features_in_"],)), *layers])


@pytest.mark.long
def test_a_classifier_is_that_of_keras(tiny: Any, as_in_keras: Callable[..., Any]) -> None:
    x, y = tiny.data(61)

    def program(folder: Path) -> Any:
        made = scikeras.KerasClassifier(
            build,
            loss="sparse_categorical_crossentropy",
            optimizer="sgd",
            optimizer__learning_rate=0.5,
            batch_size=8,
            epochs=2,
            verbose=0,
            fit__shuffle=False,
        )
        made.fit(x, y)
        return {"losses": made.history_["loss"], "probabilities": made.predict_proba(x)}

    found = as_in_keras(program)
    assert np.argmax(found["probabilities"], axis=1).shape == y.shape


def test_copies_keep_their_class(tiny: Any) -> None:
    """`import scikeras` replaces the methods by which Keras copies and pickles models."""
    model = kfit.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(other) is kfit.Sequential
        assert tiny.distance(other, model) == 0.0
