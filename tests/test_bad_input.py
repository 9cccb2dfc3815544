"""Bad input, or code of the user's that fails, on one worker of two: the cause is said, and once.

`pytest -m "long or not long" tests/test_bad_input.py -s` prints how long it took until the run had
ended.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from kfit.supervisor.local import free_ports
from tests.deadlines import deadline
from tests.runs import snapshots

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "programs" / "bad_input.py"
LATEST = 10.0
"""The seconds after which all tasks have ended."""
ENDED = 400.0
"""The seconds that a run may take as a whole."""

# A case of the program, and the error of worker 1.
OF_WORKER_1 = {
    "generator raises": "KeyError: 'age'",
    "py_function raises": "KeyError: 'age'",
    "labels out of range": "`y` holds the class 7",
    "update_state raises": "TypeError: labels must be one-hot",
    "result raises": "ZeroDivisionError: no positives",
    "callback raises": "FileNotFoundError: [Errno 2] No such file or directory: 'labels.csv'",
    "objects": "ValueError: `x` cannot be made into a tensor",
    "empty": "ValueError: `x` must hold at least one example",
}

OF_ALL = {
    "shape": "`x` must be the same on every worker",  # only worker 1 has another
    "shape on all": "; the model was made for (4,)",
    "strings": "`x` must be the same on every worker",
    "strings on all": "`x` holds strings, but the model's input",
    "objects on all": "`x` cannot be made into a tensor",
    "empty on all": "`x` must hold at least one example",
    "bad labels": "`y` must be the same on every worker",
    "batch size": "`batch_size` must be the same on every worker. Received: worker 0: 8, worker 1:",
    "model": "(4, 6), worker 1: 'sequential/dense/kernel', float32 (4, 5)",
    "layers": "worker 0: 'sequential/dense_1/kernel', float32 (6, 3), worker 1: ",
    "never ends": "`x` makes a data set that never ends on worker 1, and one that ends",
}


def inherited() -> dict[str, str]:
    """The environment of a worker, as far as it is that of the tests."""
    kept = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    return {**kept, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"}


def run(folder: Path, case: str, *options: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Runs a case on two workers; returns also how many seconds after the failure the run ended."""
    command = ["-m", "kfit", "run", "--workers", "2", *options, str(PROGRAM), case]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=inherited(),
        capture_output=True,
        text=True,
        check=False,
        timeout=ENDED,
    )
    ended = time.time()
    assert left_in(folder) == []
    return done, ended - failed_at(done.stdout, done.stderr)


def failed_at(output: str, errors: str) -> float:
    """When the first task has failed."""
    found = [float(moment) for moment in re.findall(r"FAILS ([\d.]+)", output)]
    assert found, output + errors
    return min(found)


def left_in(folder: Path) -> list[psutil.Process]:
    """The processes that work in a folder."""
    return [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)]


def by_hand(folder: Path, case: str) -> tuple[list[int], list[str], float]:
    """Runs a case on two workers that nobody watches, until both have ended.

    Returns:
        Their exit codes, what they printed, and the seconds from the failure to the last end.
    """
    workers = [f"localhost:{port}" for port in free_ports(2)]
    processes, files = [], []
    for index in (0, 1):
        config = {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}
        files.append(folder / f"{index}.txt")
        with files[-1].open("w") as file:
            command = [sys.executable, str(PROGRAM), case]
            env = {**inherited(), "TF_CONFIG": json.dumps(config)}
            processes.append(
                subprocess.Popen(command, cwd=folder, env=env, stdout=file, stderr=file)
            )
    try:
        codes = [process.wait(ENDED) for process in processes]
        ended = time.time()
    finally:
        for process in processes:
            process.kill()
            process.wait()
    said = [file.read_text() for file in files]
    return codes, said, ended - failed_at("".join(said), "")


@pytest.mark.parametrize("case", ["generator raises", "labels out of range"])
def test_a_worker_whose_peer_has_ended_in_its_data_ends_by_itself(
    tmp_path: Path, case: str
) -> None:
    """Each reads a pipeline of its own, and asks the other in each step whether it has ended."""
    with deadline(LATEST) as limit:
        codes, said, seconds = by_hand(tmp_path, case)
    assert codes == [1, 1], said
    assert OF_WORKER_1[case] in said[1]
    assert re.search(r"worker 1 (\(|has closed its connection|has failed)", said[0]), said[0]
    limit.check(f"{case}: both had ended", seconds)


def test_a_worker_whose_data_end_early_goes_on_without_rows(tmp_path: Path) -> None:
    done, _ = run(tmp_path, "generator ends early")
    assert done.returncode == 0, done.stderr
    chief, other = told_by(done.stdout)
    assert len(chief["losses"]) == 4
    assert chief["losses"] == other["losses"]
    assert chief["finite"]
    assert other["finite"]


def told_by(output: str) -> list[Any]:
    """What the two workers told at the end of their training."""
    found = [json.loads(each) for each in re.findall(r"HISTORY (\{.*\})", output)]
    assert len(found) == 2, output
    return sorted(found, key=lambda each: int(each["worker"]))


@pytest.mark.parametrize(("case", "error"), OF_WORKER_1.items())
def test_what_fails_on_one_worker_is_said_once(tmp_path: Path, case: str, error: str) -> None:
    with deadline(LATEST) as limit:
        done, seconds = run(tmp_path, case)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kfit: error: worker 1 ended with exit code 1"), done.stderr
    assert error in last
    assert said_by(1, done.stderr).count("    main()\n") <= 1, done.stderr  # one traceback
    assert error in said_by(1, done.stderr)
    assert "Traceback" not in said_by(0, done.stderr), done.stderr
    limit.check(f"{case}: all had ended", seconds)


@pytest.mark.parametrize(("case", "error"), OF_ALL.items())
def test_what_fails_on_all_workers_is_said_once(tmp_path: Path, case: str, error: str) -> None:
    with deadline(LATEST) as limit:
        done, seconds = run(tmp_path, case)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kfit: error: both tasks failed by the same error: ValueError: ")
    assert error in last
    assert done.stderr.count("    main()\n") == 1, done.stderr  # one traceback
    if case == "shape":
        assert "worker 0: 'float32 (64, 4) #" in last
        assert "worker 1: 'float32 (64, 3) #" in last
    limit.check(f"{case}: all had ended", seconds)


BLOCKS = {
    "callback blocks": "in on_epoch_end",
    "generator blocks": "reading data",
    "result blocks": "preparing a step",
}


@pytest.mark.parametrize(("case", "doing"), BLOCKS.items())
def test_what_takes_for_ever_on_one_worker_is_named(tmp_path: Path, case: str, doing: str) -> None:
    with deadline(LATEST) as limit:
        done, seconds = run(tmp_path, case, "--hang-timeout", "6")
    assert done.returncode == 137
    last = done.stderr.splitlines()[-1]
    assert f"worker 1 hung: no progress for 6 s, {doing}" in last
    assert "bad_input.py:" in last
    limit.check(f"{case}: all had ended", seconds)


@pytest.mark.parametrize("case", ["TerminateOnNaN", "BackupAndRestore", "RollBack"])
def test_nan_on_one_worker_is_never_saved(tmp_path: Path, case: str) -> None:
    """One row of worker 1 is NaN in the fourth step of the second epoch."""
    done, _ = run(tmp_path, f"nan, {case}")
    assert done.returncode == 0, done.stderr
    chief, other = told_by(done.stdout)
    assert np.array_equal(chief["losses"], other["losses"], equal_nan=True)
    assert (chief["finite"], len(chief["losses"])) == {
        "TerminateOnNaN": (False, 2),
        "BackupAndRestore": (False, 4),
        "RollBack": (True, 4),
    }[case]
    with h5py.File(tmp_path / "best.weights.h5") as best:
        found: list[Any] = []
        best.visititems(lambda _, each: found.append(each[()]) if hasattr(each, "dtype") else None)
        assert len(found) >= 2
        assert all(np.isfinite(each).all() for each in found)
    if case == "BackupAndRestore":
        assert [name.step for name in snapshots(tmp_path)] == [8, 10]
        assert done.stderr.count("The weights hold NaN or infinity at step 12") == 1
        assert done.stderr.count("NaN or infinity") == 1


def said_by(worker: int, output: str) -> str:
    """The lines of one worker."""
    own = f"[worker {worker}] "
    lines = [line.removeprefix(own) for line in output.splitlines() if line.startswith(own)]
    return "".join(f"{line}\n" for line in lines)
