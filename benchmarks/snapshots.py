"""What a snapshot costs training: the hold-up, the step after it, and the throughput.

Usage: python -m benchmarks.snapshots [--quick]

The model is one whose weights and Adam's two slots take 300 MB. Keras' own BackupAndRestore saves
the same model beside it, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
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
    """A model of three layers whose state, with Adam's, has that size."""
    width = int((megabytes * 1e6 / 4 / 3 / 3) ** 0.5)
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(width, activation="relu") for _ in range(3)]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile(keras.optimizers.Adam(1e-4), "mse")
    return model


class StepTimes(keras.callbacks.Callback):
    """The seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._begun)


class Held(BackupAndRestore):
    """Measures how long each save holds training up."""

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
    """Prints how long a save holds training up, and what the step after it takes."""
    model, every = model_of(megabytes), 6
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


class Limit(kfit.callbacks.TimeLimit):
    """Measures the steps a second until the time is up, without the last save."""

    rate = 0.0

    def on_due(self) -> None:
        super().on_due()
        assert self.training is not None
        self.rate = self.training.progress.step / (time.monotonic() - self._begun)


def throughput(megabytes: float, seconds: float, rounds: int) -> None:
    """Prints the throughput with a save every 10 seconds, over the one without any."""
    model = model_of(megabytes)
    trainer = kfit.Trainer(model, "one_device")
    data = data_for(model, 64, 32)
    trainer.fit(**data, verbose=0)  # traces the graphs
    ratios = []
    for _ in range(rounds):
        rates = []
        for backs_up in (False, True):
            limit = Limit(seconds)
            with contextlib.ExitStack() as stack:
                folder = stack.enter_context(tempfile.TemporaryDirectory())
                backup = BackupAndRestore(folder, save_freq=dt.timedelta(seconds=10))
                callbacks = [limit, backup] if backs_up else [limit]
                trainer.fit(**data, epochs=10**6, verbose=0, callbacks=callbacks)
            rates.append(limit.rate)
        ratios.append(1 - rates[1] / rates[0])
    spread = f"{min(ratios):.2%} to {max(ratios):.2%}"
    print(
        f"a save of {megabytes:.0f} MB every 10 s costs {statistics.median(ratios):.2%} of the "
        f"throughput ({spread}, {rounds} rounds of {seconds:.0f} s)"
    )


def _print(what: str, seconds: list[float]) -> None:
    middle, most = statistics.median(seconds) * 1e3, max(seconds) * 1e3
    print(f"{what:45s} {middle:8.1f} ms, at most {most:8.1f} ms ({len(seconds)} times)", flush=True)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tiny form, to see that it works")
    quick = parser.parse_args().quick
    hold_up(3 if quick else 300, 2 if quick else 8)
    for megabytes in (3,) if quick else (30, 300):
        throughput(megabytes, 2 if quick else 45, 1 if quick else 3)


if __name__ == "__main__":
    main()
