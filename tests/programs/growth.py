"""Prints, as JSON, what grows with the steps, the calls and the place in the data: nothing should.

Memory is in MB, resident; times are seconds.
"""

import contextlib
import gc
import json
import os
import tempfile
import time
from typing import Any

import keras
import numpy as np
import psutil

import kfit
from kfit.checkpoint import fits
from kfit.distribute import OneDevice
from kfit.inputs import as_batches

EXECUTIONS, CALLS, RESUMED = 10_000, 50, 100
MEGABYTES = 64
"""The size of an array that is large beside what else a program holds."""
PROCESS = psutil.Process(os.getpid())


def memory() -> float:
    gc.collect()
    return float(PROCESS.memory_info().rss / 2**20)


def model() -> keras.Model:
    made = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
    made.compile("adam", "mse", metrics=["mae"], steps_per_execution=1)
    return made


def left_open() -> list[int]:
    """The threads, the files and the child processes of this process."""
    gc.collect()
    return [PROCESS.num_threads(), PROCESS.num_fds(), len(PROCESS.children(recursive=True))]


class CutError(Exception):
    """Ends a training."""


class Cut(keras.callbacks.Callback):
    """Ends a training after its fifth step."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._steps == 5:
            raise CutError

    def state_dict(self) -> dict[str, Any]:
        return {}  # it counts anew after a restart

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Watch(keras.callbacks.Callback):
    """Notes memory and time after every 1,000 executions."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.memory: list[float] = []
        self.seconds: list[float] = []
        self._begun = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.steps += 1
        if self.steps % 1000 == 0:
            self.seconds.append(time.perf_counter() - self._begun)
            self.memory.append(memory())
            self._begun = time.perf_counter()


def first_batch(x: np.ndarray, step: int) -> float:
    """Seconds to the first batch of an epoch that is resumed at `step`."""
    batches = as_batches(x, batch_size=1, strategy=OneDevice(), shuffle=True, seed=1)
    begun = time.perf_counter()
    run = next(batches.segments(3, step))
    next(run.iterator)
    return time.perf_counter() - begun


x = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
y = x[:, :1]
watch = Watch()
trainer = kfit.Trainer(model(), "one_device")
trainer.fit(x, y, batch_size=2, epochs=EXECUTIONS // 100, verbose=0, callbacks=[watch])
calls = []
for _ in range(CALLS):
    trainer.fit(x, y, batch_size=50, epochs=1, verbose=0)
    calls.append(memory())
large = np.ones((MEGABYTES * 2**16, 4), "float32")
arrays = []
for _ in range(3):
    # Without a call of the garbage collector, which a program does not call either.
    trainer.fit(large, large[:, :1], batch_size=2**16, verbose=0)
    trainer.evaluate(large, large[:, :1], batch_size=2**16, verbose=0)
    trainer.predict(large, batch_size=2**16, verbose=0)
    arrays.append(float(PROCESS.memory_info().rss / 2**20))
del large
resumed = []
with tempfile.TemporaryDirectory() as folder:
    first = trainer.model.get_weights()
    for _ in range(RESUMED):
        fits.forget()  # as in a process that was just started
        trainer.model.set_weights(first)
        trainer.model.optimizer.iterations.assign(0)
        keras.utils.set_random_seed(1)
        backup = kfit.callbacks.BackupAndRestore(os.path.join(folder, "backup"), save_freq=2)
        with contextlib.suppress(CutError):
            trainer.fit(x, y, batch_size=2, epochs=9, verbose=0, callbacks=[backup, Cut()])
        resumed.append(left_open())
    steps = int(trainer.model.optimizer.iterations)
many = np.zeros((2_000_000, 1), "float32")
first_batch(many, 0)
starts = {step: min(first_batch(many, step) for _ in range(3)) for step in (0, 1_000_000)}
print(
    "RESULT",
    json.dumps(
        {
            "executions": watch.memory,
            "seconds": watch.seconds,
            "calls": calls,
            "arrays": [used / MEGABYTES for used in arrays],
            "resumed": resumed,
            "steps_of_resumed": steps,
            "starts": [starts[0], starts[1_000_000]],
        }
    ),
)
