"""An evaluator beside workers, under a supervisor of its own: real processes without TensorFlow."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kfit.supervisor.process_group import TaskCommand
from kfit.supervisor.sidecar import as_sidecar

SOON = 30.0
PROGRAM = """
import json, os, pathlib, signal, sys, time

task = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
folder, life = pathlib.Path(sys.argv[1]), os.environ["KFIT_GENERATION"]

def wait_for(name):
    deadline = time.monotonic() + 25
    while not (folder / name).exists():
        if time.monotonic() > deadline:
            sys.exit(99)
        time.sleep(0.02)

"""


@pytest.fixture
def run(tmp_path: Path) -> object:
    def run(code: str, *options: str) -> tuple[int, list[str], list[str]]:
        program = tmp_path / "program.py"
        program.write_text(PROGRAM + textwrap.dedent(code))
        done = subprocess.run(
            [sys.executable, "-m", "kfit", "run", "--no-join", *options, program, tmp_path],
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        return done.returncode, sorted(done.stdout.splitlines()), done.stderr.splitlines()

    return run


def test_an_evaluator_is_started_again_alone(run) -> None:
    code, out, err = run(
        """
        if task == "evaluator":
            if life == "0":
                os.kill(os.getpid(), signal.SIGKILL)
            (folder / "beside").write_text(os.environ["KFIT_BESIDE"])
            (folder / "evaluated").touch()
        else:
            wait_for("evaluated")
            assert (folder / "beside").read_text() == os.environ["KFIT_RUN"] + ":0"
        print(task, life)
        """,
        "--workers=2",
        "--evaluator",
        "--max-restarts=1",
    )
    assert (code, out) == (
        0,
        ["[evaluator 0] evaluator 1", "[worker 0] worker 0", "[worker 1] worker 0"],
    )
    assert err[0] == "kfit: starting 2 workers and an evaluator on this host"
    # The workers' processes are told beside what the evaluator's own supervisor prints.
    (workers,) = [line for line in err if line.startswith("kfit: worker")]
    assert re.fullmatch(r"kfit: worker 0 is process \d+, worker 1 is process \d+", workers)
    first, killed, second = [line for line in err[1:] if line != workers][:3]
    told = re.compile(r"\[evaluator 0\] kfit: evaluator 0 is process \d+").fullmatch
    assert told(first)
    assert told(second)
    assert first != second
    assert killed.startswith(
        "[evaluator 0] kfit: evaluator 0 was killed by SIGKILL; attempt 2 starts in"
    )


@pytest.mark.long
def test_training_goes_on_without_an_evaluator_that_is_given_up(run) -> None:
    code, out, err = run(
        """
        if task == "evaluator":
            sys.exit("broken")
        time.sleep(1)
        print("trained")
        """,
        "--workers=1",
        "--evaluator",
    )
    assert (code, out) == (1, ["[worker 0] trained"])
    assert "kfit: evaluator 0 ended with exit code 1; without it go on: worker 0" in err
    assert err[-1] == "kfit: error: evaluator 0 ended with exit code 1: broken"


@pytest.mark.long
def test_when_a_worker_fails_both_start_again(run) -> None:
    code, out, err = run(
        """
        # Each evaluator's own supervisor counts anew.
        if task == "worker":
            wait_for("evaluator")
            if life == "0":
                (folder / "evaluator").unlink()
                sys.exit(3)
            (folder / "trained").touch()
        else:
            (folder / "evaluator").touch()
            wait_for("trained")
        print(task, life)
        """,
        "--workers=1",
        "--evaluator",
        "--max-restarts=1",
    )
    assert (code, out) == (0, ["[evaluator 0] evaluator 0", "[worker 0] worker 1"]), err
    assert "kfit: worker 0 ended with exit code 3; stopping evaluator 0" in err


def test_that_a_signal_stops_the_run_is_said_once(run) -> None:
    code, _, err = run(
        """
        (folder / task).touch()
        wait_for("evaluator")
        wait_for("worker")
        if task == "worker":
            os.kill(os.getppid(), signal.SIGTERM)
        time.sleep(60)
        """,
        "--workers=1",
        "--evaluator",
    )
    assert code == 143
    told = [line.partition(";")[0] for line in err if "SIGTERM" in line]
    assert told == ["kfit: SIGTERM: stopping the tasks", "kfit: stopped by SIGTERM"], err


def test_the_command_of_a_task_beside_the_others() -> None:
    task = TaskCommand("evaluator 0", ("python", "-u", "--grace", "train.py"), {"A": "1"})
    made = as_sidecar(task, grace=1.5, max_restarts=2, hang_timeout=None)
    assert made.dispensable
    assert not task.dispensable
    assert (made.name, made.env) == (task.name, task.env)
    assert made.argv[-5:] == ("evaluator 0", *task.argv)
    assert made.argv[2:9] == (
        *("kfit.supervisor.sidecar", "--grace", "1.5", "--max-restarts", "2"),
        *("--hang-timeout", "off"),
    )
