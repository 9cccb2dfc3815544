"""Faults of whole runs: signals in a save, tasks and supervisors that are suspended or killed.

The processes fail at fault sites (`kfit/fault_sites.py`), so at places that no clock hits.
"""

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from kfit.fault_sites import Site
from kfit.supervisor.local import free_ports
from tests.armed_runs import ArmedRun, Untouched, armed, check_success
from tests.runs import digests, snapshots
from tests.soak.life_checks import check_leftovers

pytestmark = pytest.mark.long

THIRD_SAVE = "before_rename:0:{action}:3"
"""What happens before the snapshot of step 15 is complete; those of steps 5 and 10 are."""


def steps_saved(folder: Path) -> list[int]:
    return [name.step for name in snapshots(folder / "run")]


def test_a_worker_that_is_preempted_during_a_save_finishes_it(
    tmp_path: Path, two_workers: Untouched
) -> None:
    with armed(tmp_path, THIRD_SAVE.format(action="term")) as run:
        run.pid_at(Site.BEFORE_RENAME)
        check_success(run, two_workers)
    first, second = run.attempts
    assert "preempted" in first.text
    assert "a preemption, which costs no restart" in first.text
    assert second.resumed_at is not None
    assert second.resumed_at >= 15


def test_a_run_that_is_preempted_during_a_save_finishes_it(
    tmp_path: Path, two_workers: Untouched
) -> None:
    with armed(tmp_path, THIRD_SAVE.format(action="stop")) as run:
        chief = run.pid_at(Site.BEFORE_RENAME)
        run.process.send_signal(signal.SIGTERM)
        run.until(lambda: "SIGTERM: stopping the tasks" in run.text)
        os.kill(chief, signal.SIGCONT)
        assert run.end() == 128 + signal.SIGTERM, run.text
        assert check_leftovers(run.life) == []
    assert run.text.splitlines()[-1].startswith("kfit: stopped by SIGTERM after step ")
    assert 15 in steps_saved(tmp_path)
    last = steps_saved(tmp_path)[-1]
    assert f"SIGTERM after step {last}; saved in" in run.text
    with armed(tmp_path) as run:
        check_success(run, two_workers)
    assert run.attempts[0].resumed_at == last


def test_a_save_that_takes_longer_than_the_grace_is_given_up(
    tmp_path: Path, two_workers: Untouched
) -> None:
    options = ("--workers", "2", "--grace", "2")
    with armed(tmp_path, THIRD_SAVE.format(action="sleep"), run=options) as run:
        run.pid_at(Site.BEFORE_RENAME)
        run.process.send_signal(signal.SIGTERM)
        assert run.end() == 128 + signal.SIGKILL, run.text
        assert check_leftovers(run.life) == []
    assert "s after the request to stop: worker 0, worker 1" in run.text
    assert "saved in" not in run.text
    assert steps_saved(tmp_path) == [5, 10]
    with armed(tmp_path) as run:
        check_success(run, two_workers)  # which sees that the half-written snapshot is gone
    assert run.attempts[0].resumed_at == 10


def test_a_chief_that_is_suspended_in_a_save_is_ended_and_cannot_be_revived(
    tmp_path: Path, two_workers: Untouched
) -> None:
    with armed(tmp_path, THIRD_SAVE.format(action="stop")) as run:
        chief = run.pid_at(Site.BEFORE_RENAME)
        run.until(lambda: len(run.attempts) > 1)
        assert not psutil.pid_exists(chief)
        check_success(run, two_workers)
    first, second = run.attempts
    assert "kfit: worker 0 hung: stopped by a signal" in first.text
    assert second.resumed_at == 10


@pytest.mark.parametrize(
    ("fault", "save_freq", "resumed_at"),
    [("before_data:0:stop:3", 5, 10), ("execution:0:stop:2", 1000, None)],
    ids=["in a save", "long before the next save"],
)
def test_a_task_that_was_replaced_and_is_revived_changes_nothing(
    tmp_path: Path, fault: str, save_freq: int, resumed_at: int | None
) -> None:
    """As on a host that was suspended or cut off, while the task was started on another one."""
    one: Any = {"command": (sys.executable,), "strategy": "one_device", "KFIT_RUN": "a"}
    with armed(tmp_path / "expected", **one) as run:
        assert run.end() == 0, run.text
    folder = tmp_path / "replaced"
    options = ("--save-freq", str(save_freq))
    with armed(folder, fault, *options, **one) as old:
        revived = old.pid_at(Site(fault.partition(":")[0]))
        with armed(folder, "", *options, KFIT_GENERATION="1", **one) as new:
            assert new.end() == 0, new.text
        assert digests(new.text) == digests(run.text)
        assert new.attempts[0].resumed_at == resumed_at
        before = contents(folder / "run")
        os.kill(revived, signal.SIGCONT)
        assert old.end() == 1
    assert digests(old.text) == []
    last = old.text.strip().splitlines()[-1]
    assert "DirectoryInUseError: " in last
    assert last.endswith("is now used by a newer start of this run, which replaces this one.")
    after = contents(folder / "run")
    # It may complete a snapshot that it had begun, which counts as older than those of the new one.
    added = {path for path in after.keys() - before.keys() if path.parent.name.startswith("g0001-")}
    assert {path: content for path, content in after.items() if path not in added} == before


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_supervisor_that_is_suspended_and_continues_finds_no_fault(
    tmp_path: Path, two_workers: Untouched
) -> None:
    """It is away for longer than a task may be without progress."""
    with armed(tmp_path, "", "--step-seconds", "0.5") as run:
        run.until(lambda: bool(steps_saved(tmp_path)))
        run.process.send_signal(signal.SIGSTOP)
        time.sleep(12)
        assert not digests(run.text)
        run.process.send_signal(signal.SIGCONT)
        check_success(run, two_workers)
    assert len(run.attempts) == 1
    assert "hung" not in run.text


def test_a_supervisor_that_is_killed_and_started_again_on_the_same_ports(
    tmp_path: Path, two_workers: Untouched
) -> None:
    """One of two hosts: its task ends with it, the other host waits, and all go on."""
    addresses = [f"localhost:{port}" for port in free_ports(2)]

    def host(index: int) -> contextlib.AbstractContextManager[ArmedRun]:
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        options = ("--max-restarts", "3", "--grace", "30")
        slow = ("--step-seconds", "0.1")
        return armed(tmp_path, "", *slow, run=options, TF_CONFIG=json.dumps(task))

    with host(0) as chief:
        with host(1) as killed:
            killed.until(lambda: bool(steps_saved(tmp_path)))
            killed.process.kill()
            assert killed.end() == -signal.SIGKILL
            assert digests(killed.text) == []
        with host(1) as again:
            assert again.end() == 0, again.text
            check_success(chief, two_workers)
        assert check_leftovers(again.life) == []
    assert len(chief.attempts) == 2
    assert "worker 0 ended with exit code 1" in chief.attempts[0].text
    assert digests(again.text) == digests(two_workers.text)[:1]
