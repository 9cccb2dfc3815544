"""What type checkers find in a user's program: the typing errors that it has, and nothing else."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

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


UNTYPED = {
    'Stub file not found for "keras"',
    'Type of "compile" is partially unknown',
    'Type of "history" is partially unknown',
    'Type of "savefig" is partially unknown',
}
"""What strict checks find in any such program: types that Keras and matplotlib do not declare."""


def run(folder: Path, *options: str) -> str:
    """Has a type checker look at the program with the mistakes."""
    (folder / "program.py").write_text(PROGRAM + "".join(f"{line}\n" for line in MISTAKES))
    command = [sys.executable, "-m", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert not done.stderr.startswith("Traceback"), done.stderr
    return done.stdout


def lines_of_mistakes() -> set[int]:
    first = len(PROGRAM.splitlines()) + 1
    return set(range(first, first + len(MISTAKES)))


def test_mypy_finds_the_mistakes_of_a_users_program_and_nothing_else(tmp_path: Path) -> None:
    options = "--strict", "--no-incremental", "--ignore-missing-imports", "--no-error-summary"
    out = run(tmp_path, "mypy", *options, "program.py")
    errors = [line for line in out.splitlines() if " error: " in line]
    assert {int(line.split(":")[1]) for line in errors} == lines_of_mistakes(), out


def test_pyright_finds_them_and_nothing_else_of_kfit(tmp_path: Path) -> None:
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict"}')
    out = run(tmp_path, "pyright", "--pythonpath", sys.executable, "--outputjson")
    found = json.loads(out)["generalDiagnostics"]
    line_of = [(each["range"]["start"]["line"] + 1, each) for each in found]
    mistaken = {line for line, each in line_of if not each["rule"].startswith("reportUnknown")}
    assert mistaken - {1} == lines_of_mistakes(), out  # line 1 imports keras
    others = [each for line, each in line_of if line not in lines_of_mistakes()]
    assert {each["message"].partition("\n")[0] for each in others} <= UNTYPED, out
