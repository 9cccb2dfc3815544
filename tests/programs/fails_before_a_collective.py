"""A hook fails on worker 1 before it evaluates, as on worker 0, by a trainer or by Keras alone."""

import json
import os
import sys
from typing import Any

import keras
import numpy as np

import kfit

TASK = json.loads(os.environ["TF_CONFIG"])["task"]


class EvaluatesOrFails(keras.callbacks.Callback):
    """What `evaluate` is given is the data of all workers."""

    def __init__(self, trainer: kfit.Trainer | None, data: Any) -> None:
        super().__init__()
        self._trainer, self._data = trainer, data

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if epoch == 1 and TASK["index"] == 1:
            raise ValueError("no such column: 'age'")
        (self._trainer or self.model).evaluate(*self._data, verbose=0)


def main(how: str) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    trainer = kfit.Trainer(model, strategy="multi_worker")
    trainer.compile("sgd", "mse")
    x = np.arange(160, dtype="float32").reshape(40, 4) / 160
    data = x, x.sum(1)
    hook = EvaluatesOrFails(trainer if how == "trainer" else None, data)
    trainer.fit(*data, batch_size=10, epochs=3, verbose=0, callbacks=[hook])


if __name__ == "__main__":
    main(sys.argv[1])
