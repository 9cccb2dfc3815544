"""Trains the digits asynchronously, and kills a server in the middle if it is told to.

    servers.py FOLDER [--cluster JSON] [--kill TYPE:INDEX] [--epochs N]

prints `RESULT {...}`: the steps counted, and the accuracy on the test data.
"""

import argparse
import json
import os
import signal
from pathlib import Path
from typing import Any

import keras
import psutil

import kfit


class Kills(keras.callbacks.Callback):
    """Kills a server on this host in the middle of an epoch, once."""

    def __init__(self, kind: str, index: int, folder: Path) -> None:
        super().__init__()
        self.task = kind, index
        self.done = folder / "killed"

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch == 2 and not self.done.exists():
            self.done.touch()
            victim = os.getpid() if self.task[0] == "chief" else server_of(*self.task).pid
            os.kill(victim, signal.SIGKILL)


def server_of(kind: str, index: int) -> psutil.Process:
    """The server of this very cluster."""
    own = json.loads(os.environ["TF_CONFIG"])["cluster"]
    wanted = own, {"type": kind, "index": index}
    for process in psutil.process_iter():
        try:
            # Not its supervisor, which has the same words at its end.
            if process.cmdline()[2:] != ["kfit", "server"]:
                continue
            config = json.loads(process.environ()["TF_CONFIG"])
        except (psutil.Error, KeyError):
            continue
        if (config["cluster"], config["task"]) == wanted:
            return process
    raise AssertionError(f"no server is {kind} {index}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cluster", type=json.loads)
    parser.add_argument("--kill")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--units", type=int, default=32)
    options = parser.parse_args()

    # Made before anything else of TensorFlow; where TF_CONFIG says so, by `kfit run`.
    strategy = (
        "auto" if options.cluster is None else kfit.distribute.ParameterServer(options.cluster)
    )
    (x, y), (x_test, y_test) = kfit.datasets.digits.load_data()
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(options.units, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    trainer = kfit.Trainer(model, strategy=strategy)
    trainer.compile(
        optimizer=keras.optimizers.Adam(3e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=6,
    )
    callbacks = [kfit.callbacks.BackupAndRestore(options.folder / "backup")]
    if options.kill:
        kind, index = options.kill.split(":")
        callbacks.append(Kills(kind, int(index), options.folder))
    history = trainer.fit(
        x, y, batch_size=32, epochs=options.epochs, callbacks=callbacks, verbose=0
    )
    told = {
        "strategy": trainer.strategy.describe(),
        "steps": int(model.optimizer.iterations),
        "expected": options.epochs * -(-len(x) // 32),
        "epochs": len(history.history["loss"]),
        "accuracy": trainer.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"],
        "plain": model.evaluate(x_test, y_test, verbose=0, return_dict=True)["accuracy"],
    }
    print("RESULT", json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
