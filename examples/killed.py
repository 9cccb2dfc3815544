"""A worker is killed in the middle of an epoch, and training resumes with the same result.

kfit run --workers 2 --max-restarts 3 examples/killed.py

The last worker kills itself at step 60. `kfit run` restarts both workers, and training resumes from
the last snapshot. With `--spare` no worker is killed; the program then prints the same hash of the
weights, since they are equal to the last bit.
"""

import argparse
import hashlib
import os
import signal

import keras

import kfit

parser = argparse.ArgumentParser()
parser.add_argument("--spare", action="store_true", help="kill nobody")
parser.add_argument("--backup", default="killed-backup", help="folder of the snapshots")
options = parser.parse_args()


class Kill(kfit.callbacks.TrainingCallback):
    """Kills this task at step 60, but only before the first restart."""

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        """Sends SIGKILL, after which no hook, handler or `finally` block runs."""
        is_first = os.environ.get("KFIT_GENERATION", "0") == "0"
        if is_first and self.training.progress.step == 60:
            os.kill(os.getpid(), signal.SIGKILL)


keras.utils.set_random_seed(1)
(x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
layers = keras.layers
model = keras.Sequential([keras.Input((8, 8)), layers.Rescaling(1 / 16), layers.Flatten()])
model.add(layers.Dense(128, activation="relu"))
model.add(layers.Dropout(0.3))
model.add(layers.Dense(10))
trainer = kfit.Trainer(model)
trainer.compile(
    "adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"]
)
callbacks = [kfit.callbacks.BackupAndRestore(options.backup, save_freq=25)]
if not options.spare and trainer.strategy.worker_index == trainer.strategy.num_workers - 1:
    callbacks.append(Kill())
trainer.fit(x, y, batch_size=64, epochs=8, verbose=2, callbacks=callbacks)
accuracy = trainer.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"]
if trainer.is_chief:
    digest = hashlib.sha256(b"".join(w.tobytes() for w in model.get_weights())).hexdigest()
    print(f"Test accuracy: {accuracy:.2%}; weights {digest[:16]}")
