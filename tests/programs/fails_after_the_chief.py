"""Worker 1 ends after the chief has ended, well or by an error."""

import json
import os
import sys
import time
from typing import Any

import keras
import numpy as np

import kfit

IS_CHIEF = json.loads(os.environ["TF_CONFIG"])["task"]["index"] == 0
ENDING = os.path.join("backup", ".kfit-ending")


class Counts(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        print("STEP", flush=True)


def main(how: str) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.arange(160, dtype="float32").reshape(40, 4) / 160
    callbacks = [kfit.callbacks.BackupAndRestore("backup"), *([Counts()] * IS_CHIEF)]
    kfit.fit(model, x, x.sum(1), batch_size=10, epochs=2, verbose=0, callbacks=callbacks)
    if IS_CHIEF:
        return
    deadline = time.monotonic() + 60
    while not os.path.exists(ENDING):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if how == "badly":
        raise ValueError("no such column: 'age'")


if __name__ == "__main__":
    main(sys.argv[1])
