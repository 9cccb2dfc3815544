"""C1 whole: every case, size and combination of devices, against one device.

It takes most of an hour on two cores; `pytest -m long tests/exactness/test_matrix.py -s` prints the
table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "programs" / "matrix.py"
LOCAL = ["one_device", *(f"mirrored_{replicas}" for replicas in (1, 2, 3, 4))]
WORKERS = ["workers_2", "workers_4"]
LIMITS = {"weights": 1e-5, "metrics": 1e-6}
ROUGH_LIMITS = {"mixed_float16": 2e-2, "mixed_bfloat16": 2e-2}
SECONDS = 5400


def results(folder: Path, combination: str, workers: int = 0) -> list[dict[str, Any]]:
    """What the program tells when it is run in one process, or on workers of this host."""
    command = [sys.executable]
    if workers:
        # It makes devices of the CPU before it joins.
        command += ["-m", "kfit", "run", "--no-join"]
        command += ["--workers", str(workers), "--hang-timeout", "off"]
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), combination],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0
    # The supervisor puts the worker's name before each line.
    lines = [line.partition("RESULT ")[2] for line in done.stdout.splitlines()]
    return [json.loads(line) for line in lines if line]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what Keras computes."""
    folder = tmp_path_factory.mktemp("expected")
    assert not [each for each in results(folder, "expected") if "error" in each]
    return folder


@pytest.mark.long
@pytest.mark.parametrize("combination", [*LOCAL, *WORKERS])
def test_every_case_equals_one_device(expected: Path, combination: str) -> None:
    workers = 2 if combination in WORKERS else 0
    told = results(expected, combination, workers)
    print(table(told, combination))
    cases = {path.name.rpartition("-")[0] for path in expected.iterdir()}
    assert len(told) == len(cases) * 4 * max(1, workers)
    assert not [each for each in told if is_wrong(each)]


def is_wrong(result: dict[str, Any]) -> bool:
    return "error" in result or any(
        result[kind] > ROUGH_LIMITS.get(result["case"], limit) for kind, limit in LIMITS.items()
    )


def table(told: list[dict[str, Any]], combination: str) -> str:
    """Worst difference of a weight and of a logged number, a row a case, over sizes and tasks."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for each in told:
        rows.setdefault(each["case"], []).append(each)
    lines = [f"{combination:48}{'weights':>10}{'metrics':>10}"]
    for case, parts in rows.items():
        if any("error" in part for part in parts):
            lines.append(f"{case:48}{'error':>10}")
            continue
        worst = [max(part[kind] for part in parts) for kind in LIMITS]
        lines.append(f"{case:48}" + "".join(f"{value:>10.0e}" for value in worst))
    return "\n".join(["", *lines])
