"""A training with bad input, or with code of its own that fails; the argument says which case.

Usage: bad_input.py CASE, on two workers. In most cases only worker 1 has the bad input. A line
`FAILS` with the time is printed when the first bad batch is made, or the code fails. If training
comes to its end, a line `HISTORY` tells the losses, and whether the weights are finite.
"""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import kfit

CASE = sys.argv[1]
WORKER = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
ROWS, BATCH, EPOCHS = 64, 8, 4


def is_here(case: str) -> bool:
    """Whether a case is to happen on this worker."""
    return case == CASE and WORKER == 1


def say() -> None:
    print(f"FAILS {time.time()}", flush=True)


x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
y = (x.sum(1) > 0).astype("int64")


def batches() -> Iterator[Any]:
    """Each worker reads data of its own, half of each batch."""
    for epoch in range(EPOCHS):
        for number in range(ROWS // BATCH):
            rows = slice(
                number * BATCH + WORKER * BATCH // 2, number * BATCH + (WORKER + 1) * BATCH // 2
            )
            features, labels = x[rows].copy(), y[rows].copy()
            if epoch == 1 and number == 3 and WORKER == 1:
                if CASE.startswith("nan"):
                    features[0] = np.nan
                    say()
                if CASE == "generator raises":
                    say()
                    raise KeyError("age")
                if CASE == "labels out of range":
                    labels[0] = 7
                    say()
                if CASE == "generator blocks":
                    say()
                    time.sleep(600)
                if CASE == "generator ends early":
                    say()
                    return
            yield features, labels


calls = itertools.count()


def look_up(features: Any, labels: Any) -> tuple[Any, Any]:
    """What a pipeline calls in Python for each batch."""
    if next(calls) == 11 and is_here("py_function raises"):
        say()
        raise KeyError("age")
    return features, labels


def shaped(*batch: Any) -> Any:
    """A batch as `look_up` returns it, with the shapes that its tensors have lost."""
    features, labels = tf.py_function(look_up, batch, [tf.float32, tf.int64])
    return tf.ensure_shape(features, (None, 4)), tf.ensure_shape(labels, (None,))


def pipeline(context: tf.distribute.InputContext) -> tf.data.Dataset:
    """What a worker reads: batches of its own."""
    like = (tf.TensorSpec((None, 4)), tf.TensorSpec((None,), tf.int64))
    made = tf.data.Dataset.from_generator(batches, output_signature=like)
    if CASE == "py_function raises":
        made = made.map(shaped)
    if is_here("never ends"):
        say()
        made = made.repeat()
    return made


class Own(keras.metrics.Metric):
    """A metric whose methods fail."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.total = self.add_weight(name="total", initializer="zeros")
        self.results = 0

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        if is_here("update_state raises"):
            say()
            raise TypeError("labels must be one-hot")
        self.total.assign_add(tf.reduce_sum(tf.cast(y_true, "float32")))

    def result(self) -> Any:
        if is_here("result raises"):
            say()
            raise ZeroDivisionError("no positives")
        if is_here("result blocks"):
            say()
            time.sleep(600)
        return self.total + 0


class Hook(keras.callbacks.Callback):
    """A callback whose hook fails, or takes for ever."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and is_here("callback raises"):
            say()
            raise FileNotFoundError(2, "No such file or directory", "labels.csv")
        if epoch == 1 and is_here("callback blocks"):
            say()
            time.sleep(600)


def main() -> None:
    kfit.join_cluster()
    keras.utils.set_random_seed(1)
    units = 5 if is_here("model") else 6
    more = [keras.layers.Dense(6)] if is_here("layers") else []
    layers = [keras.layers.Dense(units), *more, keras.layers.Dense(3)]
    if CASE not in ("model", "layers"):
        layers = layers[-1:]
    model = keras.Sequential([keras.Input((4,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [Own(name="own")] if CASE.split()[0] in ("update_state", "result") else ["accuracy"]
    trainer = kfit.Trainer(model, "multi_worker")
    trainer.compile("sgd", loss, metrics=metrics)
    callbacks: list[Any] = [Hook()]
    if CASE.startswith("nan"):
        best = {"monitor": "loss", "save_best_only": True, "save_weights_only": True}
        callbacks.append(kfit.callbacks.ModelCheckpoint("best.weights.h5", **best))
    if CASE == "nan, TerminateOnNaN":
        callbacks.append(keras.callbacks.TerminateOnNaN())
    if CASE == "nan, BackupAndRestore":
        callbacks.append(kfit.callbacks.BackupAndRestore("backup", 2, delete_checkpoint=False))
    if CASE == "nan, RollBack":
        callbacks.append(kfit.callbacks.RollBack())
    features, labels = x, y
    wrong = WORKER == 1 or CASE.endswith("on all")
    if CASE.startswith("shape") and wrong:
        features = x[:, :3]
    if CASE.startswith("strings") and wrong:
        features = x.astype(str)
    if CASE.startswith("objects") and wrong:
        features = np.array([[1.0, 2.0, 3.0, None]] * ROWS, object)
    if CASE.startswith("empty") and wrong:
        features, labels = x[:0], y[:0]
    if CASE.startswith("bad labels") and wrong:
        labels = y.copy()
        labels[41] = 7
    of_arrays = ("shape", "strings", "objects", "empty", "bad labels")
    wrong_from_the_start = (*of_arrays, "batch size", "model", "layers")
    if CASE.startswith((*wrong_from_the_start, "update", "result", "callback")):
        if CASE.startswith(wrong_from_the_start):
            say()
        size = 2 * BATCH if is_here("batch size") else BATCH
        given: Any = {"x": features, "y": labels, "batch_size": size, "epochs": EPOCHS}
    else:
        given = {"x": pipeline, "epochs": EPOCHS, "steps_per_epoch": ROWS // BATCH}
    history = trainer.fit(**given, verbose=0, callbacks=callbacks)
    finite = all(np.isfinite(weight).all() for weight in model.get_weights())
    told = {"worker": WORKER, "losses": history.history["loss"], "finite": bool(finite)}
    print("HISTORY", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
