"""Trains with backups on a disk that becomes full, and again when there is space.

    full_disk.py FOLDER

prints `RESULT {...}`: the error, the steps taken until then, what was on the disk, and what the
trainings ended with. On a disk that cannot be written there is no second training.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import kfit
from kfit.checkpoint import fits

FOLDER = Path(sys.argv[1])
BACKUP, BALLAST = FOLDER / "backup", FOLDER / "ballast"
LEFT = 1 << 18
"""The bytes that the ballast leaves on the disk: a quarter of a snapshot."""


class FillsTheDisk(keras.callbacks.Callback):
    """Leaves no space for the snapshot of the sixth step."""

    steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        time.sleep(0.2)  # time for the writer
        FillsTheDisk.steps += 1
        if int(self.model.optimizer.iterations) == 6:
            free = os.statvfs(FOLDER)
            with open(BALLAST, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - LEFT)


def train(*callbacks: keras.callbacks.Callback) -> str:
    """Trains from the first step, as a program that was just started; returns a digest."""
    fits.forget()
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(1000), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(1e-4), "mse")
    x = np.random.default_rng(0).normal(size=(64, 256)).astype("float32")
    data = {"x": x, "y": x.sum(1), "batch_size": 16, "epochs": 3}
    kfit.fit(model, **data, verbose=0, callbacks=list(callbacks), strategy="one_device")
    content = b"".join(weight.tobytes() for weight in model.get_weights())
    return hashlib.sha256(content).hexdigest()


def main() -> None:
    told: dict[str, Any] = {"undisturbed": train()}
    backup = kfit.callbacks.BackupAndRestore(BACKUP, save_freq=2)
    try:
        train(FillsTheDisk(), backup)
    except OSError as error:
        told["error"] = str(error)
    told["steps"] = FillsTheDisk.steps
    if BALLAST.exists():
        told["names"] = sorted(name for name in os.listdir(BACKUP) if not name.startswith("."))
        BALLAST.unlink()
        told["later"] = train(backup)
    print("RESULT", json.dumps(told))


if __name__ == "__main__":
    main()
