"""Specs that differ between tasks, on real processes: nobody waits for the others for ever."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "programs" / "unlike_specs.py"


def told(folder: Path, *options: str, cases: tuple[str, ...]) -> dict[str, Any]:
    """What each task tells of these cases under `kfit run`."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "kfit", "run", *options, str(PROGRAM), str(folder), *cases],
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(found) for found in re.findall(r"RESULT (\{.*\})", done.stdout)]
    return {each.pop("task"): each for each in results}


@pytest.mark.long
def test_two_workers_that_evaluate(tmp_path: Path) -> None:
    cases = ("exporters", "evaluators", "names")
    tasks = told(tmp_path, "--workers", "2", cases=cases)
    chief, other = tasks["worker 0"], tasks["worker 1"]
    assert other["exporters"].startswith("ValueError: `monitor` must name a number among")
    assert chief["exporters"].startswith("ValueError: `exporters` of another task")
    for each in (chief, other):
        # Only one of them has the callback that evaluates.
        assert each["evaluators"].startswith("ValueError: `callbacks` must")
        assert "another has others" in each["evaluators"]
    assert not [*tmp_path.glob("e*/checkpoints/*step*")]
    # What the chief exports counts. Two epochs of four steps, evaluated after each.
    assert (chief["names"], other["names"]) == ([8, 2], [8, 0])
    assert [path.name for path in (tmp_path / "names/export").iterdir()] == ["a.keras"]


@pytest.mark.long
def test_a_chief_and_an_evaluator(tmp_path: Path) -> None:
    cases = ("exporters", "names")
    tasks = told(tmp_path, "--workers", "1", "--evaluator", cases=cases)
    chief, evaluator = tasks["worker 0"], tasks["evaluator 0"]
    # The evaluator exports, so its exporters count, and training does not wait for them.
    assert (chief["exporters"], chief["names"]) == ([8, 0], [8, 0])
    assert evaluator["exporters"].startswith("ValueError: `monitor` must name a number among")
    assert evaluator["names"] == [8, 2]
    assert [path.name for path in (tmp_path / "names/export").iterdir()] == ["b.keras"]
