"""Measures what a snapshot costs training: the pause, the step after it, and the throughput.

Usage: python -m benchmarks.snapshots [--quick]

The weights of the model and Adam's two slots take 300 MB. For comparison Keras' own
BackupAndRestore saves the same model.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np

import kfit
from kfit.callbacks import BackupAndRestore


def model_of(megabytes: float) -> keras.Model:
    """A model of three layers whose weights and Adam slots take that many megabytes."""
    width = int((megabytes * 1e6 / 4 / 3 / 3) ** 0.5)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


class StepTimes(keras.callbacks.Callback):
    """Records the seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._begun)


class Held(BackupAndRestore):
    """Records for how many seconds each save pauses training."""

    seconds: list[float]

    def on_save_point(self, reason: Any) -> None:
        begun = time.perf_counter()
        super().on_save_point(reason)
        if reason == "step":
            self.seconds.append(time.perf_counter() - begun)


def data_for(model: keras.Model, steps: int, batch_size: int) -> dict[str, Any]:
    """Arrays of one epoch of `steps` steps."""
    x = np.random.default_rng(0).normal(size=(steps * batch_size, model.input_shape[1]))
    return {"x": x.astype("float32"), "y": x.astype("float32"), "batch_size": batch_size}


def hold_up(megabytes: float, saves: int) -> None:
    """Prints how long a save pauses training, and how long the step after it takes."""
    # The steps between two saves: enough to finish writing the previous snapshot.
    model, every = model_of(megabytes), 16
    trainer = kfit.Trainer(model, "one_device")
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        backup = Held(os.path.join(folder, "backup"), save_freq=every)
        backup.seconds = []
        data = data_for(model, saves * every + 1, 8)
        trainer.fit(**data, epochs=1, verbose=0, callbacks=[times, backup])
        keras_saves = [_keras_save(model, folder) for _ in range(3)]
    after = times.seconds[every::every]
    others = [s for i, s in enumerate(times.seconds[1:], 1) if i % every > 1]
    size = sum(v.numpy().nbytes for v in [*model.variables, *model.optimizer.variables])
    copy = statistics.median(_copied(size) for _ in range(3))
    _print(f"a save of {size / 1e6:.0f} MB holds training up", backup.seconds)
    _print("a step", others)
    _print("the step after a save", after)
    print(f"{'one copy of the state in memory':45s} {copy * 1e3:8.1f} ms")
    _print("Keras' BackupAndRestore, the same state", keras_saves)


def _keras_save(model: keras.Model, folder: str) -> float:
    callback = keras.callbacks.BackupAndRestore(os.path.join(folder, "keras"))
    callback.set_model(model)
    begun = time.perf_counter()
    callback.on_epoch_end(0)
    return time.perf_counter() - begun


def _copied(size: int) -> float:
    source = np.ones(size, "uint8")
    begun = time.perf_counter()
    source.copy()
    return time.perf_counter() - begun


class EveryOther(BackupAndRestore):
    """Saves once in every other window of 10 seconds, and records the steps in each window.

    Other load on the host is similar in two successive windows, but not in two calls of `fit`.
    """

    window = 10.0

    def on_train_begin(self, logs: Any = None) -> None:
        self._begun = time.perf_counter()
        self._saved_in: set[int] = set()
        self.came: dict[int, list[tuple[float, int]]] = {}

    def is_due(self) -> bool:
        assert self.training is not None
        now = time.perf_counter() - self._begun
        number = int(now / self.window)
        self.came.setdefault(number, []).append((now, self.training.progress.step))
        return number % 2 == 1 and number not in self._saved_in

    def on_save_point(self, reason: Any) -> None:
        super().on_save_point(reason)
        self._saved_in.add(int((time.perf_counter() - self._begun) / self.window))

    def costs(self) -> list[float]:
        """The lost fraction of the throughput: each window with a save against the one before."""
        rates = {}
        for number, places in self.came.items():
            (begun, first), (ended, last) = places[0], places[-1]
            rates[number] = (last - first) / max(ended - begun, 1e-9)
        # The first window compiles, and the last one is cut off.
        whole = [number for number in rates if number % 2 and 1 < number < max(rates)]
        return [1 - rates[number] / rates[number - 1] for number in whole]


def throughput(megabytes: float, windows: int, seconds: float = 10.0) -> None:
    """Prints what fraction of the throughput a save in every window of `seconds` costs."""
    model = model_of(megabytes)
    data = data_for(model, 64, 32)
    with tempfile.TemporaryDirectory() as folder:
        backup = EveryOther(folder, save_freq=10**9)
        backup.window = seconds
        limit = kfit.callbacks.TimeLimit((2 * windows + 3) * seconds)
        trainer = kfit.Trainer(model, "one_device")
        trainer.fit(**data, epochs=10**6, verbose=0, callbacks=[limit, backup])
    costs = backup.costs()
    print(
        f"a save of {megabytes:.0f} MB every {seconds:.0f} s costs {statistics.median(costs):.2%} "
        f"of the throughput ({min(costs):.2%} to {max(costs):.2%}, {len(costs)} windows)",
        flush=True,
    )


def _print(what: str, seconds: list[float]) -> None:
    middle, most = statistics.median(seconds) * 1e3, max(seconds) * 1e3
    print(f"{what:45s} {middle:8.1f} ms, at most {most:8.1f} ms ({len(seconds)} times)", flush=True)


def main() -> None:
    """Measures and prints the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny form, to see that it works")
    quick = parser.parse_args().quick
    hold_up(3 if quick else 300, 2 if quick else 8)
    for megabytes in (3,) if quick else (30, 300):
        throughput(megabytes, 1 if quick else 6, 1.0 if quick else 10.0)


if __name__ == "__main__":
    main()
