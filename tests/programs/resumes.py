"""A training that kills itself at a step, or while it resumes; prints a digest when it ends.

Usage: resumes.py FOLDER [--step N | --calls N]

With `--step` the same training runs first without a backup, and its digest is printed. With
`--calls` the process is killed after so many calls of functions of kfit, from the beginning of the
restore; where the restore has fewer, at its end, and their number is printed before.
"""

import argparse
import hashlib
import os
import signal
import sys
from typing import Any

import keras
import numpy as np

import kfit
from kfit.callbacks import BackupAndRestore
from kfit.training.fit_state import FitState

OWN = os.path.dirname(kfit.__file__)
EXAMPLES = 40

parser = argparse.ArgumentParser()
parser.add_argument("folder")
parser.add_argument("--step", type=int, default=0)
parser.add_argument("--calls", type=int, default=0)
options = parser.parse_args()


def die() -> None:
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)


class Kill(keras.callbacks.Callback):
    """Kills the process at a step, when the snapshots of the steps before have been written."""

    def __init__(self, backup: BackupAndRestore) -> None:
        super().__init__()
        self.wait = backup._writer.wait

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if options.step and int(self.model.optimizer.iterations) == options.step:
            self.wait()
            die()


class Numbers(keras.metrics.Metric):
    """The sum of a power of the numbers of the examples seen in the epoch."""

    def __init__(self, power: int) -> None:
        super().__init__(name=f"sum_{power}")
        self.power = power
        self.total = self.add_weight(name="total", initializer="zeros")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.total.assign_add(keras.ops.sum(y_true[:, 1] ** self.power))

    def result(self) -> Any:
        return self.total + 0


def train(*callbacks: keras.callbacks.Callback) -> str:
    """Trains from the start, unless a callback resumes; returns a digest of what was learned."""
    keras.utils.set_random_seed(4)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(EXAMPLES, 3)).astype("float32")
    y = np.stack([draw.normal(size=EXAMPLES), np.arange(EXAMPLES)], axis=1).astype("float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(8)])
    model.add(keras.layers.Dropout(0.3))
    model.add(keras.layers.Dense(1))
    model.compile(
        "adam",
        lambda y_true, y_pred: keras.losses.mean_squared_error(y_true[:, :1], y_pred),
        metrics=[Numbers(1), Numbers(2)],
    )
    history = kfit.fit(
        model, x, y, batch_size=8, epochs=3, verbose=0, strategy="one_device", callbacks=callbacks
    ).history
    # No example is left out, and none comes twice.
    assert history["sum_1"] == [np.arange(EXAMPLES).sum()] * 3
    assert history["sum_2"] == [(np.arange(EXAMPLES) ** 2).sum()] * 3
    values = [v.numpy().tobytes() for v in [*model.variables, *model.optimizer.variables]]
    return hashlib.sha256(b"".join(values) + repr(history).encode()).hexdigest()


calls = 0


def count(frame: Any, event: str, _: Any) -> None:
    global calls
    if event == "call" and frame.f_code.co_filename.startswith(OWN):
        calls += 1
        if calls == options.calls:
            die()


find, apply = BackupAndRestore.find_snapshot, FitState.apply_restore


def find_and_count(self: BackupAndRestore) -> Any:
    sys.setprofile(count)
    return find(self)


def apply_and_end(self: FitState) -> None:
    apply(self)
    sys.setprofile(None)
    print("CALLS", calls)
    die()


if options.step:
    print("UNTOUCHED", train(), flush=True)
if options.calls:
    BackupAndRestore.find_snapshot, FitState.apply_restore = find_and_count, apply_and_end
backup = BackupAndRestore(options.folder, save_freq=3)
print("DIGEST", train(backup, Kill(backup)))
