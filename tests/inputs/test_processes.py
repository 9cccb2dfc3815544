"""Batches that are made in other processes."""

import subprocess
import sys
import threading
from typing import Any

import keras
import numpy as np
import pytest

import kfit

PROGRAM = """
import os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import keras, kfit
import numpy as np

print("begins")
SCALE = 3.0

def made():
    class Rows(keras.utils.PyDataset):  # no other process can import it
        def __len__(self):
            return 3

        def __getitem__(self, index):
            x = np.random.normal(size=(4, 2)) if self.draws else np.full((4, 2), index)
            return x * SCALE, np.ones((4, 1))

        draws = False

        def on_epoch_end(self):
            self.draws = not self.draws

    return Rows

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
weights = model.get_weights()
losses = []
for workers in map(int, sys.argv[1:]):
    model.set_weights(weights)
    rows = made()(workers=workers, use_multiprocessing=True)
    trainer = kfit.Trainer(model, "one_device", seed=5)
    history = trainer.fit(rows, epochs=3, shuffle=False, verbose=0)
    losses.append(history.history["loss"])
assert losses[0] == losses[-1], losses
print("ends")
"""


@pytest.mark.long
@pytest.mark.parametrize("workers", ["1", "1 2"])
def test_a_program_that_is_not_guarded(tmp_path: Any, workers: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    # What a stranger may have put into the folder in which the program is started.
    folder = tmp_path / "current"
    folder.mkdir()
    for module in ("pickle", "struct", "multiprocessing", "socket"):
        (folder / f"{module}.py").write_text("open('it_was_run', 'w')")
    command = [sys.executable, str(program), *workers.split()]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, check=False, cwd=folder
    )
    assert done.stdout.split() == ["begins", "ends"], done.stderr[-3000:]
    if sys.version_info >= (3, 11):
        assert not (folder / "it_was_run").exists()


class Locked(keras.utils.PyDataset):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return np.ones((4, 2)), np.ones((4, 1))


def test_what_cannot_travel_is_refused_and_what_needs_no_process_is_not() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    trainer = kfit.Trainer(model, "one_device")
    with pytest.raises(ValueError, match="`x`, a Locked with use_multiprocessing=True, cannot be"):
        trainer.fit(Locked(workers=2, use_multiprocessing=True), shuffle=False, verbose=0)
    trainer.fit(Locked(workers=0, use_multiprocessing=True), shuffle=False, verbose=0)
