"""Keras' own wrappers for scikit-learn, in pipelines and searches, train as with Keras."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

model_selection = pytest.importorskip("sklearn.model_selection", reason='pip install -e ".[test]"')
FIT = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}


def classifier(X: Any, y: Any, rate: float = 0.1) -> keras.Model:  # noqa: N803  Keras names it so
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(y.shape[1] if y.ndim > 1 else 3, activation="softmax")]
    made = keras.Sequential([keras.Input(X.shape[1:]), *layers])
    made.compile(keras.optimizers.SGD(rate), "categorical_crossentropy")
    return made


def regressor(X: Any, y: Any) -> keras.Model:  # noqa: N803  Keras names it so
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    made.compile(keras.optimizers.SGD(0.1), "mse")
    return made


def test_a_regressor_in_a_pipeline(tiny: Any, as_in_keras: Callable[..., Any]) -> None:
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    x, y = tiny.data(61)

    def program(folder: Path) -> Any:
        wrapped = keras.wrappers.SKLearnRegressor(regressor, fit_kwargs=FIT)
        return make_pipeline(StandardScaler(), wrapped).fit(x, y.astype("float32")).predict(x)

    as_in_keras(program)


@pytest.mark.long
def test_a_classifier_in_a_search(tiny: Any, as_in_keras: Callable[..., Any]) -> None:
    x, y = tiny.data(61)

    def program(folder: Path) -> Any:
        wrapped = keras.wrappers.SKLearnClassifier(classifier, fit_kwargs=FIT)
        rates = {"model_kwargs": [{"rate": 0.01}, {"rate": 0.5}]}
        search = model_selection.GridSearchCV(wrapped, rates, cv=2, error_score="raise").fit(x, y)
        return {"scores": search.cv_results_["mean_test_score"], "classes": search.predict(x)}

    found = as_in_keras(program)
    assert found["scores"][1] > found["scores"][0]
