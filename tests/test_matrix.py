"""C1 whole: every case of test_exactness.py, size and combination of devices, against one device.

It takes most of an hour on two cores: `pytest -m long tests/test_matrix.py -s` prints the table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parent / "distribute" / "programs" / "matrix.py"
LOCAL = ["one_device", *(f"mirrored_{replicas}" for replicas in (1, 2, 3, 4))]
WORKERS = ["workers_2", "workers_4"]
LIMITS = {"weights": 1e-5, "metrics": 1e-6}
ROUGH_LIMITS = {"mixed_float16": 2e-2, "mixed_bfloat16": 2e-2}
SECONDS = 5400


def results(folder: Path, combinations: list[str], workers: int = 0) -> list[dict[str, Any]]:
    """What the program tells when it is run in one process, or on workers of this host."""
    command = [sys.executable]
    if workers:
        command += ["-m", "kfit", "run", "--workers", str(workers), "--hang-timeout", "off"]
    done = subprocess.run(
        [*command, str(PROGRAM), str(folder), *combinations],
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


@pytest.mark.long
def test_every_case_on_every_combination_equals_one_device(tmp_path: Path) -> None:
    failed = [each for each in results(tmp_path, ["expected"]) if "error" in each]
    assert not failed
    told = results(tmp_path, LOCAL)
    for combination in WORKERS:
        told += results(tmp_path, [combination], workers=2)
    print(table(told))
    cases = {each["case"] for each in told}
    assert len(told) == len(cases) * 4 * (len(LOCAL) + 2 * len(WORKERS))
    assert not [each for each in told if is_wrong(each)]


def is_wrong(result: dict[str, Any]) -> bool:
    return "error" in result or any(
        result[kind] > ROUGH_LIMITS.get(result["case"], limit) for kind, limit in LIMITS.items()
    )


def table(told: list[dict[str, Any]]) -> str:
    """Worst difference of a weight and of a logged number, a row a case, over sizes and tasks."""
    cells: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in told:
        cells.setdefault((each["case"], each["combination"]), []).append(each)
    columns = [*LOCAL, *WORKERS]
    lines = [f"{'weights, metrics':48}" + "".join(f"{name:>18}" for name in columns)]
    for case in dict.fromkeys(case for case, _ in cells):
        row = [_cell(cells.get((case, column), [])) for column in columns]
        lines.append(f"{case:48}" + "".join(f"{text:>18}" for text in row))
    return "\n".join(["", *lines])


def _cell(told: list[dict[str, Any]]) -> str:
    if not told:
        return "-"
    if any("error" in each for each in told):
        return "error"
    worst = [max(each[kind] for each in told) for kind in LIMITS]
    return ", ".join(f"{value:.0e}" for value in worst)
