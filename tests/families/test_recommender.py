"""Two towers that rate what a user would watch: embeddings of users and of films."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

pytestmark = pytest.mark.long

USERS, FILMS = 30, 40


def watched() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    return {"user": draw.integers(0, USERS, 21), "film": draw.integers(0, FILMS, 21)}


def ratings() -> np.ndarray:
    return np.random.default_rng(1).uniform(0.0, 5.0, (21, 1)).astype("float32")


def tower(number: int, given: Any) -> Any:
    return layers.Dense(3, "tanh")(layers.Embedding(number, 4)(given))


def recommender() -> keras.Model:
    inputs = {name: keras.Input((), dtype="int32", name=name) for name in ("user", "film")}
    both = [tower(USERS, inputs["user"]), tower(FILMS, inputs["film"])]
    rating = layers.Dense(1)(layers.Concatenate()([*both, layers.Dot(1)(both)]))
    model = keras.Model(inputs, rating)
    root = keras.metrics.RootMeanSquaredError(name="root")
    model.compile(keras.optimizers.Adagrad(0.1), "mse", metrics=[root])
    return model


def test_two_towers_are_those_of_keras(as_in_keras: Any) -> None:
    as_in_keras(recommender, watched(), ratings())
