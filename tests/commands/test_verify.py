"""`kfit verify` takes model and data of a script from its first `fit`, and writes nothing."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kfit.commands import verified_fit
from kfit.commands.verify import _without_a_verdict
from kfit.training.stop_signals import Preempted

DEADLINE = 300.0
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys

import keras
import numpy as np


class Doubles(keras.Sequential):
    def fit(self, x=None, y=None, **kwargs):
        x = 2 * x if isinstance(x, np.ndarray) else x
        return super().fit(x, y, **kwargs)


class Writes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        open("written", "w").close()


def batches(x, y):
    while True:
        yield x[:16], y[:16]
        yield x[16:21], y[16:21]


print("the script says", sys.argv[1:])
x = np.random.default_rng(0).normal(size=(53, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
layers = [keras.layers.Dense(4, "relu"), keras.layers.Dense(1)]
if "unsynchronized" in sys.argv:
    layers.insert(1, keras.layers.BatchNormalization())
model = Doubles(layers)
model.compile("sgd", "mse")
try:
    if "generator" in sys.argv:
        model.fit(batches(x, y), steps_per_epoch=4, callbacks=[Writes()])
    if "no" in sys.argv:
        sys.exit(1)
    if "bad" in sys.argv:
        model.fit(x, y[:7])
    if "of_kfit" in sys.argv:
        import kfit

        kfit.fit(model, x, y, batch_size=16, validation_split=0.1, callbacks=[Writes()])
    model.fit(x, y, batch_size=16, validation_split=0.1, callbacks=[Writes()])
finally:
    if "no" not in sys.argv:
        open("written", "w").close()
"""


def run(folder: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "kfit", "verify", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=folder, timeout=DEADLINE, check=False
    )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize("kind", ["of_keras", "of_kfit"])
def test_a_script_is_equal_and_writes_nothing(program: Path, kind: str) -> None:
    done = run(program, "--json", "--steps", "2", "train.py", "--lr", kind)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["equal"] is True
    assert found["batch_sizes"] == [16, 15]
    assert f"the script says ['--lr', '{kind}']" in done.stderr
    assert "oneDNN" not in done.stderr
    assert "strategy 'auto'" not in done.stderr
    assert [path.name for path in program.iterdir()] == ["train.py"]


@pytest.mark.long
def test_a_difference_in_batches_of_a_generator_is_exit_code_1(program: Path) -> None:
    done = run(program, "train.py", "unsynchronized", "generator")
    assert done.returncode == 1, done.stderr
    assert "DIFFERS: 3 steps on 2 replicas" in done.stdout
    assert "batch_normalization (batch normalization)" in done.stdout
    assert [path.name for path in program.iterdir()] == ["train.py"]


@pytest.mark.long
def test_a_script_without_a_fit(program: Path) -> None:
    """An option of `kfit verify` that stands after the script is one of the script's."""
    done = run(program, "--json", "train.py", "no", "--replicas", "4")
    assert done.returncode == 2
    assert "ended with exit code 1 before its" in json.loads(done.stdout)["error"]
    assert "kfit: note: `--replicas` is passed to train.py, since it stands after it" in done.stderr
    assert "options of `kfit verify` come before the script" in done.stderr
    assert "ended with exit code 1 before its first `fit`" in done.stderr


@pytest.mark.long
def test_wrong_data_could_not_run(program: Path) -> None:
    done = run(program, "train.py", "bad")
    assert done.returncode == 2
    assert "COULD NOT RUN: ValueError" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--replicas", "1", "train.py"], "`--replicas` is '1'; expected a whole number from 2 up"),
        (["--replicas", "x", "train.py"], "`--replicas` is 'x'; expected a whole number from 2 up"),
        (["--steps", "x", "train.py"], "`--steps` is 'x'"),
        (["missing.py"], "the script 'missing.py' does not exist"),
        (["tran.py"], "; did you mean 'train.py'?"),
        ([], "expected `kfit verify script.py`"),
        (["--replica", "2", "train.py"], "did you mean `--replicas`"),
    ],
)
def test_wrong_options(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any, program: Path
) -> None:
    from kfit.commands.main import main

    monkeypatch.chdir(program)
    assert main(["verify", *words]) == 2
    assert says in capsys.readouterr().err


STANDS_STILL = """
import os
import signal
import sys
import time

if "stubborn" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open("begun.tmp", "w") as file:
    print(os.getpid(), file=file)
os.replace("begun.tmp", "begun")
time.sleep(600)
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("signum", "whole_group", "words"),
    [
        (signal.SIGTERM, False, []),
        (signal.SIGINT, True, []),
        (signal.SIGTERM, False, ["stubborn"]),
    ],
)
def test_a_signal_ends_the_script_too(
    signum: signal.Signals, whole_group: bool, words: list[str], tmp_path: Path
) -> None:
    """Without a traceback, as in a terminal, where Ctrl-C reaches both processes."""
    (tmp_path / "train.py").write_text(STANDS_STILL)
    command = [sys.executable, "-m", "kfit", "verify", "train.py", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as verifying:
        deadline = time.monotonic() + DEADLINE
        while not (tmp_path / "begun").exists():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        script = int((tmp_path / "begun").read_text())
        (os.killpg if whole_group else os.kill)(verifying.pid, signum)
        _, err = verifying.communicate(timeout=60)
    assert verifying.returncode == 128 + signum
    assert err.splitlines()[1:] == [f"kfit: stopped by {signum.name}"]
    with pytest.raises(ProcessLookupError):
        os.kill(script, 0)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Preempted(signal.SIGTERM)])
def test_a_script_does_not_go_on_after_a_signal(error: BaseException) -> None:
    def verify(*_: Any, **__: Any) -> Any:
        raise error

    names = ["x", "y", "sample_weight", "validation_split", "validation_data", *verified_fit._KEPT]
    given = {**dict.fromkeys(names), "self": SimpleNamespace(verify=verify)}
    found = verified_fit._verified(given, {"replicas": 2, "steps": 3})
    assert found == (2, "a signal has stopped it")


@pytest.mark.parametrize("batch", [{"x": 1}, ({"x": 1},), [{"x": 1}]])
def test_what_a_generator_yields_is_taken_as_fit_takes_it(batch: Any) -> None:
    assert verified_fit._parts_of(batch) == ({"x": 1},)


def test_a_script_that_is_killed_is_told() -> None:
    assert _without_a_verdict(-9) == "the process of the script was killed by SIGKILL"


@pytest.mark.long
def test_the_example_of_digits() -> None:
    done = run(ROOT, "--replicas", "3", "examples/digits.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL BUT FOR RANDOM DRAWS: 3 steps on 3 replicas" in done.stdout
    assert "dropout (random numbers)" in done.stdout
