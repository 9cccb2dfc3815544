"""Trains with the callbacks of Weights & Biases, without its server; no line is kfit's."""

import json
import os

import keras
import numpy as np
import wandb
from wandb.integration.keras import WandbMetricsLogger, WandbModelCheckpoint

wandb.init(mode="offline", project="digits")
logged = []
wandb.log_artifact = lambda artifact, **kwargs: logged.append(artifact.name)

keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(0.1), "mse")
folder = os.path.join(os.getcwd(), "models")
callbacks = [WandbMetricsLogger(), WandbModelCheckpoint(os.path.join(folder, "{epoch}.keras"))]
fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
losses = model.fit(x, x.sum(axis=1), callbacks=callbacks, **fit).history["loss"]
summary = wandb.run.summary.get("epoch/loss")
wandb.finish()
files = sorted(os.listdir(folder)) if logged else []
told = {"losses": losses, "logged": len(logged), "files": files, "summary": summary}
print("numbers", json.dumps(told), flush=True)
