"""Two workers and an evaluator as real processes, some of which are killed."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import keras
import pytest

import kfit
from kfit.checkpoint.store import SnapshotName, Store

PROGRAM = Path(__file__).parents[1] / "programs" / "train_and_evaluate.py"
DEADLINE = 240  # seconds; some ten times what it takes on two idle cores
STEPS = [10, 20, 30, 40, 50, 60]


def run(folder: Path, *kills: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    command = [sys.executable, "-m", "kfit", "run", "--workers=2", "--evaluator"]
    command += ["--max-restarts=3", str(PROGRAM), str(folder), *kills]
    folder.mkdir()
    with subprocess.Popen(
        command,
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=DEADLINE)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            raise AssertionError(f"not done after {DEADLINE} s:\n{output}") from None
    assert process.returncode == 0, output
    return output


def lines(folder: Path) -> list[dict[str, Any]]:
    with open(folder / "eval/evaluations.jsonl") as file:
        return [json.loads(line) for line in file]


def check_by_hand(folder: Path) -> None:
    """Compares each line, and the exported model, with what `evaluate` says of the weights."""
    layers = keras.layers
    model = keras.Sequential([keras.Input((8, 8)), layers.Rescaling(1 / 16), layers.Flatten()])
    model.add(layers.Dense(32, activation="relu"))
    model.add(layers.Dense(10))
    trainer = kfit.Trainer(model, "one_device")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    trainer.compile("adam", loss, metrics=["accuracy"])
    x, y = kfit.datasets.digits.load_data()[1]
    store = Store(str(folder / "checkpoints"))
    for line in lines(folder):
        name = SnapshotName.parse(line["checkpoint"])
        assert name is not None
        kept = store.read(name).state["variables"]
        values = [v["value"] for v in kept if v["part"] == "model" and "dense" in v["name"]]
        model.set_weights(values)
        found = trainer.evaluate(x, y, batch_size=128, verbose=0, return_dict=True)
        assert line["metrics"] == pytest.approx(found, rel=1e-6)
    best = keras.saving.load_model(folder / "export/best.keras")
    found = best.evaluate(x, y, verbose=0, return_dict=True)
    assert found["accuracy"] == pytest.approx(max(e["metrics"]["accuracy"] for e in lines(folder)))


@pytest.mark.long
def test_the_evaluator_is_killed(tmp_path: Path) -> None:
    output = run(tmp_path / "job", "evaluator:10")
    assert [line["step"] for line in lines(tmp_path / "job")] == STEPS
    assert "[evaluator 0] kfit: evaluator 0 was killed by SIGKILL" in output
    assert "attempt 2 starts" in output.split("was killed by SIGKILL")[1]
    _, *told = [line for line in output.splitlines() if line.startswith("kfit: ")]
    # On a slow host `kfit run` says every 10 s that a worker is still starting.
    (processes,) = [line for line in told if "is starting (" not in line]  # no worker was touched
    assert re.fullmatch(r"kfit: worker 0 is process \d+, worker 1 is process \d+", processes)
    assert "the evaluator stands outside of the cluster of the workers" in output
    assert "[evaluator 0] 6 evaluations, chief: False" in output
    check_by_hand(tmp_path / "job")


@pytest.mark.long
def test_kills_change_no_number(tmp_path: Path) -> None:
    run(tmp_path / "spared")
    kills = ("evaluator:10", "evaluator:60", "chief:5", "chief:25", "chief:60")
    output = run(tmp_path / "killed", *kills)
    assert output.count("kfit: worker 0 was killed by SIGKILL after step") == 3
    spared, killed = (
        [(line["step"], line["metrics"]) for line in lines(tmp_path / name)]
        for name in ("spared", "killed")
    )
    assert [step for step, _ in spared] == STEPS
    assert spared == killed
    check_by_hand(tmp_path / "spared")
