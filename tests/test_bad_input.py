"""Bad input, or code of the user's that fails, on one worker of two: the cause is said, and once.

`pytest -m long tests/test_bad_input.py -s` prints how long it took until the run had ended.
"""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

PROGRAM = Path(__file__).parent / "programs" / "bad_input.py"
LATEST = 10.0
"""The seconds after which all tasks have ended."""
SLOW_MACHINE = 3.0
"""How many times longer it may take where the workers wait for the cores of this machine."""

# A case of the program, and the error of worker 1.
OF_WORKER_1 = {
    "generator raises": "KeyError: 'age'",
    "labels out of range": "Received a label value of 7",
    "update_state raises": "TypeError: labels must be one-hot",
    "result raises": "ZeroDivisionError: no positives",
    "callback raises": "FileNotFoundError: [Errno 2] No such file or directory: 'labels.csv'",
}

OF_ALL = {
    "shape": "`x` must be the same on every worker",  # only worker 1 has another
    "shape on all": "expected axis -1 of input shape to have value 4",
    "objects on all": "`x` cannot be made into a tensor",
    "empty on all": "`x` must hold at least one example",
}


def run(folder: Path, case: str, *options: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Runs a case on two workers; returns also how many seconds after the failure the run ended."""
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    command = ["-m", "kfit", "run", "--workers", "2", *options, str(PROGRAM), case]
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**inherited, "TF_NUM_INTRAOP_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    ended = time.time()
    failed = [float(moment) for moment in re.findall(r"FAILS ([\d.]+)", done.stdout)]
    assert failed, done.stdout + done.stderr
    assert [each for each in psutil.process_iter(["cwd"]) if each.info["cwd"] == str(folder)] == []
    return done, ended - min(failed)


def check_time(case: str, seconds: float) -> None:
    print(f"\n{case}: all had ended after {seconds:.1f} s", end="")
    assert seconds < LATEST * SLOW_MACHINE


@pytest.mark.long
@pytest.mark.parametrize(("case", "error"), OF_WORKER_1.items())
def test_what_fails_on_one_worker_is_said_once(tmp_path: Path, case: str, error: str) -> None:
    done, seconds = run(tmp_path, case)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kfit: error: worker 1 ended with exit code 1"), done.stderr
    assert error in last
    assert said_by(1, done.stderr).count("    main()\n") <= 1, done.stderr  # one traceback
    assert error in said_by(1, done.stderr)
    assert "Traceback" not in said_by(0, done.stderr), done.stderr
    check_time(case, seconds)


@pytest.mark.long
@pytest.mark.parametrize(("case", "error"), OF_ALL.items())
def test_what_fails_on_all_workers_is_said_once(tmp_path: Path, case: str, error: str) -> None:
    done, seconds = run(tmp_path, case)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("kfit: error: all 2 tasks failed by the same error: ValueError: ")
    assert error in last
    assert done.stderr.count("    main()\n") == 1, done.stderr  # one traceback
    if case == "shape":
        assert "worker 0: 'float32 (64, 4) #" in last
        assert "worker 1: 'float32 (64, 3) #" in last
    check_time(case, seconds)


@pytest.mark.long
def test_a_callback_that_takes_for_ever_on_one_worker_is_named(tmp_path: Path) -> None:
    done, seconds = run(tmp_path, "callback blocks", "--hang-timeout", "6")
    assert done.returncode == 137
    last = done.stderr.splitlines()[-1]
    assert "worker 1 hung: no progress for 6 s, in on_epoch_end" in last
    assert "bad_input.py:" in last
    check_time("callback blocks", seconds)


def said_by(worker: int, output: str) -> str:
    """The lines of one worker."""
    own = f"[worker {worker}] "
    lines = [line.removeprefix(own) for line in output.splitlines() if line.startswith(own)]
    return "".join(f"{line}\n" for line in lines)
