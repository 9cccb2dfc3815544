"""What fails on one worker alone stops all of them, in processes that live on and train again."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent / "programs" / "one_fails.py"


@pytest.mark.long
def test_all_workers_stop_with_the_error_of_one(tmp_path: Path) -> None:
    inherited = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    done = subprocess.run(
        [sys.executable, "-m", "kfit", "run", "--workers", "2", str(PROGRAM)],
        cwd=tmp_path,
        env={**inherited, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(found) for found in re.findall(r"RESULT (\{.*\})", done.stdout)]
    chief, other = sorted(results, key=lambda result: result.pop("task"))
    assert chief.pop("none") == other.pop("none")
    assert len(chief) == 7
    assert set(chief.values()) == {"OSError: no space left"}
    assert set(other.values()) == {
        "PeerFailedError: Worker 0 failed: OSError: no space left. This task stops with it."
    }
