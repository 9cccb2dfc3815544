"""What type checkers find in a user's program: the typing errors that it has, and nothing else."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """\
import keras
import kfit
from kfit.callbacks import BackupAndRestore
from kfit.datasets import digits

(x, y), _ = digits.load_data()
model = kfit.Sequential([keras.layers.Dense(10)])
model.compile(optimizer="adam", loss="mse")
model.fit(x, y, batch_size=64, epochs=2, strategy="mirrored", callbacks=[BackupAndRestore("a")])
kfit.fit(model, x, y, 64, strategy="auto").history
trainer = kfit.Trainer(model, strategy=kfit.distribute.Mirrored())
trainer.fit(x, y, validation_split=0.1, shuffle="batch")
kfit.launch(print, args=("a",), workers=2)
board = kfit.callbacks.TensorBoard("logs", update_freq=100, profile_batch=(5, 8))
figure = kfit.plot_history(trainer.fit(x, y, callbacks=[board]), mode={"f1": "max"})
figure.savefig("history.png")
"""

MISTAKES = [
    "kfit.Trianer(model)",
    "kfit.callbacks.BackUpAndRestore('a')",
    "digits.load()",
    "model.fit(x, y, batchsize=64)",
    "model.predict(x, stratgy='mirrored')",
    "kfit.fit(model, x, y, epochs='2')",
    "kfit.evaluate(model, x, y, return_dictionary=True)",
    "trainer.fit(x, y, epoch=2)",
    "trainer.compile('adam', run_eagerly='no')",
    "kfit.Trainer(model, stategy='mirrored')",
    "BackupAndRestore('a', save_frq=10)",
    "BackupAndRestore('a', save_freq='epochs')",
    "kfit.launch(print)",
    "kfit.distribute.Mirorred()",
    "kfit.callbacks.TensorBoard('logs', update_freq='steps')",
    "kfit.plot_history(trainer.history, metric='loss')",
]
"""Lines that are added to the program; each of them has one mistake."""


def mypy(folder: Path) -> list[str]:
    options = "--strict", "--no-incremental", "--ignore-missing-imports", "--no-error-summary"
    return [sys.executable, "-m", "mypy", *options, str(folder / "program.py")]


def pyright(folder: Path) -> list[str]:
    return [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(folder)]


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_a_users_program(checker, tmp_path):
    if importlib.util.find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    (tmp_path / "program.py").write_text(PROGRAM + "".join(f"{line}\n" for line in MISTAKES))
    command = checker(tmp_path)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    errors = [line for line in done.stdout.splitlines() if " error: " in line]
    first = len(PROGRAM.splitlines()) + 1
    found = {int(line.split("program.py:")[1].split(":")[0]) for line in errors}
    assert found == set(range(first, first + len(MISTAKES))), done.stdout + done.stderr
