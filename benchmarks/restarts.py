"""Measures how long a restart after the kill of a worker takes, compared with a cold start.

Usage: python -m benchmarks.restarts [--rounds N]

The script trains on two workers with a snapshot every few steps. A cold start is the time from
`kfit run` to the first step; a restart is the time from SIGKILL of a worker to the first step of
the next generation. It also prints how long it takes until the other worker's process has ended.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAM = """
import sys, time, keras, numpy as np, kfit

class Marks(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        with open(f"{sys.argv[1]}/steps", "a") as file:
            file.write(f"{time.time()} {trainer.strategy.worker_index}\\n")
        time.sleep(0.01)

keras.utils.set_random_seed(1)
layers = keras.layers
model = keras.Sequential([keras.Input((28, 28, 1)), layers.Conv2D(32, 3, activation="relu"),
                          layers.Flatten(), layers.Dense(128), layers.Dense(10)])
model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
trainer = kfit.Trainer(model, "multi_worker")
x, y = np.zeros((3200, 28, 28, 1), "float32"), np.zeros(3200)
backup = kfit.callbacks.BackupAndRestore(f"{sys.argv[1]}/backup", save_freq=10)
trainer.fit(x, y, batch_size=32, epochs=1000, verbose=0, callbacks=[Marks(), backup])
"""


def _steps(folder: Path) -> list[float]:
    path = folder / "steps"
    lines = path.read_text().splitlines() if path.exists() else []
    return [float(line.split()[0]) for line in lines if len(line.split()) == 2]


def _wait(folder: Path, count: int) -> list[float]:
    deadline = time.time() + 120
    while len(_steps(folder)) < count:
        if time.time() > deadline:
            raise TimeoutError(f"no step in 120 s; see {folder}")
        time.sleep(0.02)
    return _steps(folder)


def _workers(supervisor: int) -> list[int]:
    path = f"/proc/{supervisor}/task/{supervisor}/children"
    pids = [int(pid) for pid in Path(path).read_text().split()]
    return [pid for pid in pids if b"program.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]


def measure(rounds: int) -> None:
    """Runs the script, kills a worker and prints the times, in each of several rounds."""
    cold, restarts, peers = [], [], []
    draw = random.Random(1)
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "program.py").write_text(PROGRAM)
            command = [sys.executable, "-m", "kfit", "run", "--workers", "2", "--max-restarts", "3"]
            begun = time.time()
            process = subprocess.Popen(
                [*command, str(folder / "program.py"), name],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            )
            try:
                cold.append(_wait(folder, 1)[0] - begun)
                _wait(folder, 60)
                workers = _workers(process.pid)
                killed = draw.choice(workers)
                os.kill(killed, signal.SIGKILL)
                at = time.time()
                (peer,) = (pid for pid in workers if pid != killed)
                while os.path.exists(f"/proc/{peer}"):
                    time.sleep(0.01)
                peers.append(time.time() - at)
                before = len(_steps(folder))
                restarts.append(_wait(folder, before + 1)[before] - at)
            finally:
                process.kill()
                process.wait()
    for what, seconds in (("cold start", cold), ("restart", restarts), ("peer down", peers)):
        print(f"{what:12s} {statistics.median(seconds):6.2f} s ({min(seconds):.2f} to "
              f"{max(seconds):.2f}, {rounds} rounds)")  # fmt: skip
    print(f"restart / cold start: {statistics.median(restarts) / statistics.median(cold):.2f}")


def main() -> None:
    """Parses the command line and measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    measure(parser.parse_args().rounds)


if __name__ == "__main__":
    main()
