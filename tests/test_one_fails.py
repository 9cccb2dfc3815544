"""What fails on one worker alone stops all of them, in processes that live on and train again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    command = ["-m", "kfit", "run", "--workers", "2", str(PROGRAMS / program), *arguments]
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.mark.long
def test_all_workers_stop_with_the_error_of_one(tmp_path: Path) -> None:
    done = run(tmp_path, "one_fails.py")
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(found) for found in re.findall(r"RESULT (\{.*\})", done.stdout)]
    chief, other = sorted(results, key=lambda result: result.pop("task"))
    assert chief.pop("none") == other.pop("none")
    assert chief.pop("trainer.save").startswith("FileExistsError: ")
    assert other.pop("trainer.save").startswith("PeerFailedError: The chief could not save the")
    assert len(chief) == 7
    assert set(chief.values()) == {"OSError: no space left"}
    assert set(other.values()) == {
        "PeerFailedError: Worker 0 failed: OSError: no space left. This task stops with it."
    }


@pytest.mark.long
@pytest.mark.parametrize("how", ["trainer", "keras"])
def test_a_hook_that_fails_before_the_others_evaluate_in_it(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, "fails_before_a_collective.py", how)
    error = "ValueError: no such column: 'age'"
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"worker 1 ended with exit code 1 after step 8: {error}" in done.stderr.splitlines()[-1]
    # Shown when it was raised, and not again when it ended the process.
    assert done.stderr.count(f"[worker 1] {error}") == 1
    assert (
        "[worker 1] kfit: a callback has failed; this call ends when the other tasks know:"
        in done.stderr
    )
    if how == "trainer":
        assert "Worker 1 has failed; its own output says why." in done.stderr
    assert "hung" not in done.stderr.replace("is ended as hung after", "")


@pytest.mark.long
def test_a_worker_that_fails_after_the_chief_loses_no_step(tmp_path: Path) -> None:
    """The chief has ended well, but the run has not."""
    badly = run(tmp_path, "fails_after_the_chief.py", "badly")
    assert badly.returncode == 1, badly.stdout + badly.stderr
    assert badly.stdout.count("STEP") == 8
    again = run(tmp_path, "fails_after_the_chief.py", "well")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("STEP") == 0
    anew = run(tmp_path, "fails_after_the_chief.py", "well")
    assert anew.stdout.count("STEP") == 8
