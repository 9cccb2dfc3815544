"""Each fault site is reached, and a worker that is killed there changes no bit of the result."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import kfit
from kfit import fault_sites
from kfit.fault_sites import MARKS, VARIABLE, Site
from tests.armed_runs import Untouched, armed, check_success, mark_of
from tests.runs import digests
from tests.soak.end_checks import check_files
from tests.soak.life_checks import check_leftovers

ROOT = Path(__file__).parents[1]
PROGRAM = """
from kfit.fault_sites import Site, reach
for count in range(1, 5):
    reach(Site.EXCHANGE)
    reach(Site.BUILDING)
    print(count, flush=True)
"""


def reached(folder: Path, faults: str, *, as_test: bool = True) -> tuple[int, list[str], str]:
    """The exit code of the program above, what it has printed, and the last line of its errors."""
    variables = {VARIABLE: faults} | ({MARKS: str(folder)} if as_test else {})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.split(), (done.stderr.splitlines() or [""])[-1]


def test_a_process_acts_once_when_it_comes_to_its_site(tmp_path: Path) -> None:
    faults = "exchange:0:kill:3,building:1:kill"
    assert reached(tmp_path, faults) == (-signal.SIGKILL, ["1", "2"], "")
    assert [path.name for path in tmp_path.iterdir()] == ["exchange-0"]
    assert int((tmp_path / "exchange-0").read_text()) > 0
    # What starts again does not fail there again, though it comes there again.
    assert reached(tmp_path, faults) == (0, ["1", "2", "3", "4"], "")
    assert reached(tmp_path, f"{faults},building:*:term:2")[:2] == (-signal.SIGTERM, ["1"])


def test_a_normal_run_refuses_faults_before_anything_else(tmp_path: Path) -> None:
    code, out, error = reached(tmp_path, "exchange:0:kill", as_test=False)
    assert (code, out) == (1, [])
    said = "`KFIT_FAULT` is 'exchange:0:kill': it makes processes fail on purpose, and only kfit's"
    assert error.startswith(f"ValueError: {said}")
    done = subprocess.run(
        [sys.executable, "-m", "kfit", "run", "--workers", "2", "no_such_script.py"],
        cwd=ROOT,
        env={**os.environ, VARIABLE: "exchange:0:kill"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"kfit: error: {said}")


def test_a_trainer_refuses_faults(monkeypatch: pytest.MonkeyPatch, tiny: Any) -> None:
    monkeypatch.setattr(fault_sites, "_asked", "exchange:0:kill")
    with pytest.raises(ValueError, match=r"`KFIT_FAULT` is 'exchange:0:kill'.* Unset KFIT_FAULT"):
        kfit.Trainer(tiny.model(), tiny.strategy(1))


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "exchange",
        "here:0:kill",
        "exchange:x:kill",
        "exchange:0:laugh",
        "exchange:0:kill:0",
        "exchange:0:kill:once",
        "exchange:0:kill:1:1",
        "exchange:0:kill,",
    ],
)
def test_a_wrong_fault_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wrong: str
) -> None:
    monkeypatch.setenv(MARKS, str(tmp_path))
    monkeypatch.setattr(fault_sites, "_asked", wrong)
    part = wrong.split(",")[-1]
    with pytest.raises(ValueError, match=re.escape(f"`KFIT_FAULT` has {part!r}; expected `site:")):
        fault_sites.check()
    monkeypatch.setenv(MARKS, str(tmp_path / "none"))
    with pytest.raises(ValueError, match=r"`KFIT_FAULT_TESTS` is .*; expected a folder"):
        fault_sites.check()


def test_each_site_is_one_place_in_the_code() -> None:
    sources = [*(ROOT / "kfit").rglob("*.py"), *(ROOT / "callbacks").glob("*.py")]
    code = "".join(path.read_text(encoding="utf-8") for path in sources)
    assert sorted(re.findall(r"\breach\(Site\.(\w+)\)", code)) == sorted(Site.__members__)


@pytest.mark.long
def test_a_kill_in_a_save_of_one_process(tmp_path: Path) -> None:
    """One start of few; the tests below come to each site."""
    options = ("--max-restarts", "1")
    with armed(tmp_path, "before_rename:0:kill:3", run=options, strategy="one_device") as run:
        assert run.end() == 0, run.text
        assert check_leftovers(run.life) == []
    assert check_files(tmp_path / "run", tmp_path / "tmp") == []
    assert mark_of(tmp_path, Site.BEFORE_RENAME).exists()
    first, second = run.attempts
    assert "kfit: everything.py was killed by SIGKILL" in first.text
    assert second.resumed_at == 10  # the snapshot of step 15 was not complete


KILLS = {
    "the start, worker 1": ["starting:1:kill", "met:1:kill", "building:1:kill"],
    "the start, chief": ["starting:0:kill", "met:0:kill"],
    "steps": ["execution:1:kill:6", "exchange:0:kill:60", "validation:1:kill"],
    "both at once": ["execution:*:kill:6"],
    "an exchange": ["exchange:1:kill:120"],
    "ends of epochs": ["epoch_end:0:kill", "epoch_end:1:kill:2", "save_point:1:kill:4"],
    "resuming, and the end": ["epoch_end:1:kill", "restoring:0:kill", "fit_end:0:kill"],
}
"""Faults of a training, each in a start of its own: what was hit starts again, and goes on."""


def victims(fault: str) -> list[tuple[Site, int]]:
    """The sites and the workers of a fault."""
    site, task, *_ = fault.split(":")
    return [(Site(site), index) for index in ((0, 1) if task == "*" else (int(task),))]


def hit_at(folder: Path, fault: str) -> int:
    """When a fault has happened, in all the workers that it is for."""
    marks = [mark_of(folder, site, task) for site, task in victims(fault)]
    assert all(mark.exists() for mark in marks), f"{fault} has not happened"
    return min(mark.stat().st_mtime_ns for mark in marks)


@pytest.mark.long
@pytest.mark.parametrize("faults", KILLS.values(), ids=list(KILLS))
def test_a_worker_that_is_killed_at_a_site_changes_no_bit(
    tmp_path: Path, two_workers: Untouched, faults: list[str]
) -> None:
    with armed(tmp_path, ",".join(faults)) as run:
        check_success(run, two_workers)
    in_order = sorted(faults, key=lambda fault: hit_at(tmp_path, fault))
    sites = {site for fault in faults for site, _ in victims(fault)}
    has_saved = not sites <= {Site.STARTING, Site.MET, Site.BUILDING}
    assert (run.attempts[-1].resumed_at is not None) == has_saved, run.text
    assert len(run.attempts) == 1 + len(faults), run.text
    for fault, attempt in zip(in_order, run.attempts, strict=False):
        names = "|".join(f"worker {task}" for _, task in victims(fault))
        named = rf"^kfit: ({names}) was killed by SIGKILL"
        assert re.search(named, attempt.text, re.MULTILINE), f"{fault}: {attempt.text}"


SAVES = {
    # The first start saves steps 5 and 10, the second one 10 and 15, and so on.
    "written": [
        ("before_data:0:kill:2", 5),
        ("before_manifest:0:kill:2", 10),
        ("before_rename:0:kill:2", 15),
        ("after_rename:0:kill:2", 25),
    ],
    # When the fourth snapshot is there, the second one is deleted.
    "deleted": [("deleting:0:kill:2", 20)],
}
"""Faults of the chief in a save, and the step from which training then goes on."""


@pytest.mark.long
@pytest.mark.parametrize("saves", SAVES.values(), ids=list(SAVES))
def test_a_chief_that_is_killed_in_a_save_leaves_the_old_or_the_new(
    tmp_path: Path, two_workers: Untouched, saves: list[tuple[str, int]]
) -> None:
    with armed(tmp_path, ",".join(fault for fault, _ in saves)) as run:
        check_success(run, two_workers)
    hits = [hit_at(tmp_path, fault) for fault, _ in saves]
    assert hits == sorted(hits)
    assert [attempt.resumed_at for attempt in run.attempts] == [None, *(at for _, at in saves)]
    for attempt in run.attempts[:-1]:
        assert "kfit: worker 0 was killed by SIGKILL" in attempt.text


@pytest.mark.long
def test_a_chief_that_is_killed_while_it_deletes_what_has_ended(
    tmp_path: Path, two_workers: Untouched
) -> None:
    """The next run of a program that has ended begins anew, and so does a start after that one."""
    shutil.copytree(two_workers.files, tmp_path / "run")
    with armed(tmp_path, "deleting:0:kill") as run:
        assert run.end() == 0, run.text
        assert check_leftovers(run.life) == []
    assert mark_of(tmp_path, Site.DELETING).exists()
    first, second = run.attempts
    assert "kfit: worker 0 was killed by SIGKILL" in first.text
    assert second.resumed_at is None
    assert set(digests(run.text)) == set(digests(two_workers.text))
    assert not list((tmp_path / "run" / "backup").glob("kfit-*"))


def test_a_supervisor_that_is_killed_between_the_starts_of_two_tasks(tmp_path: Path) -> None:
    with armed(tmp_path, "task_started:0:kill") as run:
        assert run.end() == -signal.SIGKILL
        assert check_leftovers(run.life) == []
    assert run.text == "kfit: starting 2 workers on this host\n"
    assert mark_of(tmp_path, Site.TASK_STARTED).exists()


def test_all_sites_are_in_the_tests_above() -> None:
    faults = [fault for each in KILLS.values() for fault in each]
    faults += [fault for each in SAVES.values() for fault, _ in each]
    killed = {site for fault in faults for site, _ in victims(fault)}
    assert killed | {Site.TASK_STARTED} == set(Site)
