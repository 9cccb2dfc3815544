"""Trains with MLflow's autolog, which replaces `fit` and adds a callback; no line is kfit's.

Usage: mlflow_autolog.py URI [chief]; with "chief" only the first worker calls autolog.
"""

import json
import os
import sys

import keras
import mlflow
import numpy as np

mlflow.set_tracking_uri(sys.argv[1])
if "chief" not in sys.argv or json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0:
    mlflow.keras.autolog(log_models=False)

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
fit = {"batch_size": 16, "epochs": 3, "shuffle": False, "verbose": 0}
model.fit(x, x.sum(axis=1), callbacks=[], **fit)
