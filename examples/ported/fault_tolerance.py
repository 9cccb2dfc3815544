"""Ported from `guide/migrate/fault_tolerance`: training that was interrupted continues.

The guide moves from the checkpoints of `MonitoredTrainingSession` and `Estimator` to Keras'
`BackupAndRestore`, and interrupts a training on purpose. Keras' callback begins the interrupted
epoch again. It does not save the state of other callbacks, of random generators or of the data.

kfit's `BackupAndRestore` saves all of this, after any step. The training below fails in the middle
of an epoch, continues from the step of its last snapshot, and ends with the same weights, bit for
bit, as one that has never failed. (`examples/killed.py` kills a worker.)

kfit run --workers 2 examples/ported/fault_tolerance.py
"""

import argparse

import keras
import numpy as np

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--folder", default="ported-fault", help="folder of the snapshots")
folder = parser.parse_args().folder


class Interrupt(keras.callbacks.Callback):
    """Fails in the middle of the fourth epoch, as a machine may."""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Called by Keras after each step."""
        if int(self.model.optimizer.iterations) == 85:
            raise RuntimeError("Interrupted on purpose")


def make_trainer() -> kfit.Trainer:
    """Makes a new model, always with the same initial weights."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(64, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(10)]
    layers = [keras.layers.Rescaling(1 / 16), keras.layers.Flatten(), *layers]
    model = keras.Sequential([keras.Input((8, 8)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2, momentum=0.5), loss, metrics=["accuracy"])
    return kfit.Trainer(model)  # kfit: no scope


(x, y), test = kfit.datasets.digits.load_data()
options = {"batch_size": 64, "epochs": 8, "verbose": 0}
backup = kfit.callbacks.BackupAndRestore(folder, save_freq=20)  # kfit: keras.callbacks...
failed, spared = make_trainer(), make_trainer()
try:
    failed.fit(x, y, **options, callbacks=[backup, Interrupt()])  # kfit: model.fit
except RuntimeError as error:
    print(error)
failed.fit(x, y, **options, callbacks=[backup])  # kfit: continues, as a new process would
spared.fit(x, y, **options)  # kfit: model.fit
same = all(map(np.array_equal, failed.model.get_weights(), spared.model.get_weights()))
loss, accuracy = failed.evaluate(*test, verbose=0)  # kfit: model.evaluate
if failed.is_chief:  # kfit: on workers, each of them runs this program
    print(f"The weights are those of a training that has not failed: {same}")
    print(f"Test: loss {loss:.6f}, accuracy {accuracy:.2%}")
