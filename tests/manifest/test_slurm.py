"""The batch script, read as Slurm reads it, and run by bash with other commands than Slurm's."""

import contextlib
import io
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kfit.commands.main import main
from kfit.manifest.slurm import seconds_of

# Options of `sbatch` and `srun` in Slurm's manual pages (22.05 to 24.11), of those kfit writes.
SBATCH = {
    "account", "cpus-per-task", "gpus-per-task", "job-name", "mem", "no-requeue", "nodes",
    "ntasks-per-node", "open-mode", "output", "partition", "requeue", "signal", "time",
}  # fmt: skip
SRUN = {"cpus-per-task", "distribution", "kill-on-bad-exit", "label", "wait"}


def kfit(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["manifest", "slurm", *arguments])
    return code, out.getvalue(), err.getvalue()


def written(*arguments: str) -> str:
    code, text, error = kfit(*arguments)
    assert code == 0, error
    return text


def options_of(script: str) -> dict[str, str]:
    lines = [line for line in script.splitlines() if line.startswith("#SBATCH --")]
    pairs = [line.removeprefix("#SBATCH --").partition("=") for line in lines]
    return {name: value for name, _, value in pairs}


def step_of(script: str) -> tuple[dict[str, str], list[str]]:
    """The options and the command of the script's `srun`."""
    (line,) = [line for line in script.splitlines() if line.startswith("srun ")]
    words = shlex.split(line)[1:]
    end = words.index("kfit")
    pairs = [word.removeprefix("--").partition("=") for word in words[:end]]
    return {name: value for name, _, value in pairs}, words[end:]


def run(script: str, folder: Path, code: int) -> tuple[int, list[list[str]]]:
    """Runs the script where `srun` ends with `code`; returns its own code and who was called."""
    for name, ends in (("srun", code), ("scontrol", 0)):
        path = folder / name
        say = f'printf "%s\\0" {name} "$@" >> calls'
        path.write_text(f"#!/bin/bash\n{say}\nprintf END >> calls\nexit {ends}\n")
        path.chmod(0o755)
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", script], env=environ, cwd=folder, timeout=30, check=False)
    calls = (folder / "calls").read_text().split("\0END")[:-1]
    return done.returncode, [call.split("\0") for call in calls]


EVERYTHING = [
    *("--nodes", "2", "--tasks-per-node", "4", "--cpus", "8", "--memory", "16G", "--gpus", "1"),
    *("--time", "1-12:00:00", "--partition", "gpu", "--account", "team", "--log", "logs/%x-%j"),
]


def test_what_is_asked_for_is_in_it() -> None:
    script = written(*EVERYTHING, "--grace", "60", "src/train.py", "--fast")
    options = options_of(script)
    assert set(options) <= SBATCH
    assert options["nodes"] == "2"
    assert options["ntasks-per-node"] == "4"
    assert options["mem"] == "64G"  # of a host
    assert options["signal"] == "USR1@150"
    assert "requeue" in options
    step, command = step_of(script)
    assert set(step) <= SRUN
    assert step["cpus-per-task"] == options["cpus-per-task"] == "8"
    assert int(step["wait"]) > 60
    assert command[:2] == ["kfit", "run"]
    assert command[-4:] == ["--grace", "60", "src/train.py", "--fast"]


def test_the_tasks_of_a_run_get_a_new_secret(tmp_path: Path) -> None:
    script = written("--nodes", "2", "train.py").replace("srun ", 'echo "$KFIT_SECRET" #', 1)

    def secret(**given: str) -> str:
        done = subprocess.run(
            ["bash", "-c", script],
            env={"PATH": os.environ["PATH"], **given},
            cwd=tmp_path,
            timeout=30,
            check=False,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    one, two = secret(), secret()
    assert re.fullmatch("[0-9a-f]{32}", one)
    assert one != two
    assert secret(KFIT_SECRET="a secret of the user") == "a secret of the user"
    assert "KFIT_SECRET" not in written("train.py")


def test_what_the_network_must_do_is_in_the_script_of_a_cluster() -> None:
    advice = "# TensorFlow's servers run whatever a caller sends them (docs/security.md of kfit)."
    assert advice in written("--nodes", "2", "train.py")
    assert advice not in written("train.py")


@pytest.mark.parametrize("options", [[], EVERYTHING, ["--doctor"]])
def test_bash_takes_it(options: list[str]) -> None:
    script = written(*options, "--setup", "module load cuda", "train.py")
    # Slurm reads options only above the first command.
    first = next(line for line in script.splitlines() if line and not line.startswith("#"))
    assert script.rindex("#SBATCH") < script.index(first)
    subprocess.run(["bash", "-n", "-c", script], check=True)


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (1, False), (138, True), (143, False)])
def test_what_comes_back_into_the_queue(tmp_path: Path, code: int, requeued: bool) -> None:
    ended, calls = run(written("train.py"), tmp_path, code)
    assert ended == code
    assert (["scontrol", "requeue", "7"] in calls) == requeued


@pytest.mark.parametrize("text", ["$(touch x)", "`touch x`", "a'b", 'a"b', "a b", "*", "\n", "; x"])
def test_nasty_words_reach_the_program(text: str, tmp_path: Path) -> None:
    script = written("--env", f"A={text}", "train.py", text)
    ended, calls = run(script, tmp_path, 0)
    assert ended == 0
    assert calls[0][-2:] == ["train.py", text]
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        ("90", 5400),
        ("90:30", 5430),
        ("2:00:05", 7205),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("0-0:0:9", 9),
    ],
)
def test_time_limits_as_slurm_reads_them(time: str, seconds: int) -> None:
    assert seconds_of(time) == seconds


def test_a_doctor_in_place_of_the_program() -> None:
    options = ["--nodes", "2", "--backup-dir", "b", "--time", "2"]
    script = written("--doctor", *options, "train.py")
    assert options_of(script)["job-name"] == "train-doctor"
    assert "no-requeue" in options_of(script)
    assert step_of(script)[1] == ["kfit", "doctor", "--timeout", "600", "--backup-dir", "b"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--name", "a b", "t.py"], "`--name` is 'a b'"),
        (["--name", "a\n#SBATCH --uid=0", "t.py"], "can stand in an #SBATCH line"),
        (["--partition", "p;q", "t.py"], "`--partition` is 'p;q'"),
        (["--cpus", "2.5", "t.py"], "`--cpus` is '2.5'"),
        (["--memory", "16Gi", "t.py"], "`--memory` is '16Gi'"),
        (["--time", "soon", "t.py"], "`--time` is 'soon'"),
        (["--time", "5", "t.py"], "`--time` is '5', but Slurm's warning may come 180 s"),
        (["--nodes", "0", "t.py"], "`--nodes` is '0'"),
        (["--setup", "a\nb", "t.py"], "`--setup` is 'a\\nb'"),
        ([], "`script.py` is missing"),
    ],
)
def test_what_cannot_be_is_refused(options: list[str], message: str) -> None:
    code, out, error = kfit(*options)
    assert (code, out) == (2, "")
    assert message in error
