"""Trains asynchronously for twelve steps; worker 1 is killed in the middle of one.

    middle.py [--policy mixed_float16]

prints `RESULT {...}`: the steps counted, the loss scale, and what was said of steps begun again.
"""

import argparse
import json
import os
import signal
import threading
import warnings
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from servers import server_of
from tensorflow.python.data.experimental.ops.testing import sleep

import kfit

STEPS, BATCH_SIZE, PAUSE = 12, 8, 2.5
LONG = (6, 7)
"""The steps that take PAUSE seconds, one on each worker."""
OVERFLOWS = 9
"""The step whose gradients are no numbers in float16."""


class Pause(keras.layers.Layer):
    """Takes its time where a batch has a negative number."""

    def call(self, x: Any) -> Any:
        seconds = tf.where(tf.reduce_any(x < 0), PAUSE, 0.0)
        slow = tf.data.Dataset.range(1).apply(sleep(tf.cast(1e6 * seconds, tf.int64)))
        return x + tf.cast(slow.reduce(tf.constant(0, tf.int64), lambda _, n: n), x.dtype)


class Kills(keras.callbacks.Callback):
    """Kills worker 1 while it takes its time."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch == LONG[0] - 1:
            victim = server_of("worker", 1).pid
            threading.Timer(PAUSE / 3, os.kill, (victim, signal.SIGKILL)).start()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--policy", default="float32")
    policy = parser.parse_args().policy
    keras.config.set_dtype_policy(policy)
    keras.utils.set_random_seed(1)
    x = np.random.default_rng(0).uniform(0.1, 1, (STEPS, BATCH_SIZE, 4)).astype("float32")
    x[list(LONG)] *= -1
    if policy == "mixed_float16":
        x[OVERFLOWS] = 1e30
    y = np.arange(STEPS * BATCH_SIZE) % 3
    model = keras.Sequential([keras.Input((4,)), Pause(dtype="float32"), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.01)
    if policy == "mixed_float16":
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=1024.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, steps_per_execution=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kfit.Trainer(model).fit(
            x.reshape(-1, 4),
            y,
            batch_size=BATCH_SIZE,
            shuffle=False,
            verbose=0,
            callbacks=[Kills()],
        )
    told = {
        "steps": int(optimizer.iterations),
        "scale": float(getattr(optimizer, "dynamic_scale", 1.0)),
        "again": [str(w.message) for w in caught if "begun again" in str(w.message)],
        "finite": all(bool(np.isfinite(weight).all()) for weight in model.get_weights()),
    }
    print("RESULT", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
