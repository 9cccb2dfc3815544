"""Forged snapshots (`forged_snapshots.py`): each is damaged, or one that can be restored."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SEED = "KFIT_TEST_SEED"
"""The environment variable that gives the seed again."""


@pytest.mark.skipif(sys.platform != "linux", reason="Linux limits memory and watches the canary")
@pytest.mark.parametrize("count", [60, 2000])
def test_a_forged_snapshot_is_damaged_or_can_be_restored(tmp_path: Path, count: int) -> None:
    seed = os.environ.get(SEED) or str(random.SystemRandom().randrange(10**6))
    program = "tests.checkpoint.forged_snapshots"
    done = subprocess.run(
        [sys.executable, "-m", program, tmp_path, "--seed", seed, "--count", str(count)],
        cwd=ROOT,
        env={**os.environ, "KFIT_BACKUP_KEY": ""},
        timeout=1000,
        check=False,
        capture_output=True,
        text=True,
    )
    again = f"{SEED}={seed}\n{done.stderr[-5000:]}"
    print(again)
    assert done.returncode == 0, again
    found = json.loads(done.stdout)
    assert sum(found["damaged"].values()) + sum(found["restored"].values()) == 2 * count
    assert len(found["damaged"]) > 5
    assert found["restored"]
