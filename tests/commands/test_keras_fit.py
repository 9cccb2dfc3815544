"""A program that knows nothing of kfit trains on a cluster, without a line changed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.sweeps import sweep

DEADLINE = 240.0
PROGRAM = '''
import json
import sys

import keras
import numpy as np
import wandb


class Doubles(keras.Sequential):
    """Prepares its data itself."""

    def fit(self, x=None, y=None, **kwargs):
        return super().fit(2 * x, y, **kwargs)


class Prints(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        print("every task", flush=True)


keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = Doubles([keras.layers.Dense(4, "relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
fit = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}
history = model.fit(x, y, validation_data=(x, y), callbacks=[wandb.Logger(), Prints()], **fit)
numbers = [history.history["loss"], history.history["val_loss"]]
numbers += [model.evaluate(x, y, verbose=0), model.predict(x, verbose=0).tolist()]
print("numbers", json.dumps({"arguments": sys.argv[1:], "numbers": numbers}), flush=True)
'''
WANDB = """
import keras


class Logger(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("logged", epoch, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("program")
    (folder / "program.py").write_text(PROGRAM)
    (folder / "wandb.py").write_text(WANDB)
    return folder


def run(folder: Path, *words: str) -> tuple[list[Any], list[str]]:
    """What each task came to, and the other lines that they printed."""
    environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    told = [line.partition("numbers ")[2] for line in lines if "numbers " in line]
    return [json.loads(each) for each in told], [line for line in lines if "numbers " not in line]


def flat(found: Any) -> list[float]:
    return [n for each in found for n in flat(each)] if isinstance(found, list) else [found]


@pytest.fixture(scope="module")
def expected(folder: Path) -> Any:
    ((found,), lines) = run(folder, "program.py", "a", "--b")
    assert lines == ["logged 0", "logged 1", "every task"]
    return found


@pytest.mark.parametrize("words", sweep([["run", "--keras-fit"], []]), ids=["run", "here"])
def test_in_one_process(folder: Path, expected: Any, words: list[str]) -> None:
    (found,), lines = run(folder, "-m", "kfit", *words, "program.py", "a", "--b")
    assert any("strategy 'auto' chose 'one_device'" in line for line in lines)
    assert found["arguments"] == ["a", "--b"]
    assert flat(found["numbers"]) == pytest.approx(flat(expected["numbers"]), rel=1e-5)


@pytest.mark.long
def test_on_two_workers(folder: Path, expected: Any) -> None:
    words = ["-m", "kfit", "run", "--workers", "2", "--keras-fit", "program.py"]
    found, lines = run(folder, *words)
    assert len(found) == 2
    for each in found:
        assert flat(each["numbers"]) == pytest.approx(flat(expected["numbers"]), rel=1e-4)
    assert sum("every task" in line for line in lines) == 2
    assert sum("logged" in line for line in lines) == 2  # by the chief alone, once an epoch
