"""Ray Train's callback reports on all workers, and the chief's model is the checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray", reason='pip install -e ".[test]"')

PROGRAM = Path(__file__).parent / "programs" / "ray_report.py"
DEADLINE = 300.0


@pytest.mark.long
def test_two_workers_report_what_one_reports(tmp_path: Path) -> None:
    left_out = ("PYTHONSAFEPATH", "TF_CONFIG")
    environ = {name: text for name, text in os.environ.items() if name not in left_out}
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(tmp_path)],
        cwd=tmp_path,
        env={**environ, "TF_CPP_MIN_LOG_LEVEL": "3", "RAY_USAGE_STATS_ENABLED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("numbers ")]
    one, two = (json.loads(line.removeprefix("numbers ")) for line in lines)
    assert two == pytest.approx(one, rel=1e-5)
