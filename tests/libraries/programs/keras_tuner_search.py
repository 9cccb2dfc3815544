"""Searches by KerasTuner, by a HyperModel with a `fit` of its own; no line is kfit's.

Usage: keras_tuner_search.py FOLDER; it prints the trials and the best weights.
"""

import json
import sys
from typing import Any

import keras
import keras_tuner
import numpy as np


class Hyper(keras_tuner.HyperModel):
    def build(self, parameters: Any) -> keras.Model:
        keras.utils.set_random_seed(1)
        units = parameters.Int("units", 3, 8)
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units, "tanh")])
        model.add(keras.layers.Dense(1))
        model.compile(keras.optimizers.SGD(parameters.Choice("rate", [0.02, 0.1])), "mse")
        return model

    def fit(self, parameters: Any, model: keras.Model, *args: Any, **options: Any) -> Any:
        size = parameters.Choice("batch", [7, 16])
        return model.fit(*args, batch_size=size, shuffle=False, **options)


x = np.random.default_rng(0).normal(size=(61, 4)).astype("float32")
y = x.sum(axis=1)
tuner = keras_tuner.RandomSearch(
    Hyper(), "val_loss", max_trials=3, seed=3, directory=sys.argv[1], overwrite=True
)
tuner.search(x[:40], y[:40], epochs=2, validation_data=(x[40:], y[40:]), verbose=0)
trials = tuner.oracle.get_best_trials(3)
found = {
    "values": [trial.hyperparameters.values for trial in trials],
    "scores": [trial.score for trial in trials],
    "best": [weight.tolist() for weight in tuner.get_best_models(1)[0].get_weights()],
}
print("found", json.dumps(found), flush=True)
