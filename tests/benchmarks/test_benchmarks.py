"""The benchmarks run, in a tiny form whose figures mean nothing."""

import importlib.util
import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.contests import CONTESTS, TARGETS, Target
from benchmarks.tables import target_table
from benchmarks.turns import Result, measure

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_program_runs_and_writes_its_tables(tmp_path: Path) -> None:
    pages = [tmp_path / "short.md", tmp_path / "all.md"]
    for page, marker in zip(pages, ("benchmarks in short", "benchmarks"), strict=True):
        page.write_text(f"before\n<!-- {marker} -->\nold\n<!-- end of benchmarks -->\nafter\n")
    command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds", "1"]
    command += ["--only", "callback", "--write", *map(str, pages)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr[-3000:]
    short, whole = (page.read_text() for page in pages)
    for written in (short, whole):
        assert written.startswith("before\n")
        assert written.endswith("after\n")
        assert "old" not in written
    assert "| kfit | Keras 3 |" in short
    for name in CONTESTS["callback"].contestants:
        assert f"| {name} |" in whole


def test_a_file_without_the_markers_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing\n")
    command = [sys.executable, "-m", "benchmarks", "--write", str(page)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert told.returncode == 2
    assert "<!-- benchmarks -->" in told.stderr


NEEDS = {"tf_keras": "tf_keras", "Lightning": "lightning", "PyTorch": "torch"}
"""By the first word of a contestant: the package of `pip install -e ".[bench]"` that it needs."""


@pytest.mark.long
@pytest.mark.parametrize("contest", CONTESTS)
def test_every_contestant_does_its_work(contest: str) -> None:
    contestants = CONTESTS[contest].contestants
    packages = {NEEDS[word] for name in contestants if (word := name.split(",")[0]) in NEEDS}
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    if missing:
        pytest.skip(f'pip install -e ".[bench]", which has {", ".join(missing)}')
    for name, (result,) in measure(CONTESTS[contest], 1, quick=True).items():
        assert math.isfinite(result.value), name
        assert result.value > 0 or CONTESTS[contest].is_of_memory, name
        assert result.memory > 50, name


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.contest}-{t.over}-{t.under}")
def test_targets_are_about_contestants_that_there_are(target: Target) -> None:
    assert {target.over, target.under} - {None} <= set(CONTESTS[target.contest].contestants)
    assert (target.most is None) != (target.least is None)


def test_a_target_is_missed_or_met() -> None:
    taken = {"Keras 3": 2.0, "kfit": 1.0}
    measured = {"callback": {name: [Result(s, 100.0)] for name, s in taken.items()}}
    table = target_table([Target("callback", "Keras 3", "kfit", least=1.5)], measured)
    missed = target_table([Target("callback", "Keras 3", "kfit", least=2.5)], measured)
    alone = target_table([Target("callback", "kfit", most=300)], measured)
    assert "| kfit, µs a step | at most 300 | 1.00 |" in alone
    assert "2.00" in table
    assert table.splitlines()[-1].split("|")[-2] != missed.splitlines()[-1].split("|")[-2]


@pytest.mark.long
def test_full_batches_are_timed_beside_a_plain_loop() -> None:
    command = [sys.executable, "-m", "benchmarks.full_batch", "--quick"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout.count("ratio") == 2
