"""A task that has failed says so at once, and waits for the others for a limited time."""

import threading
from typing import Any

import pytest

from kfit.heartbeat import Heartbeat
from kfit.training.noted_failure import NotedFailure


class Strategy:
    """Notes what is asked of it."""

    failed_peer = ""

    def __init__(self, workers: int = 2) -> None:
        self.num_workers = workers
        self.marks: list[bool] = []
        self.reasons: list[str] = []
        self.broken_off = threading.Event()

    def mark_failed(self, failed: bool) -> None:
        self.marks.append(failed)

    def break_off(self, reason: str) -> None:
        self.reasons.append(reason)
        self.broken_off.set()


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def noted(strategy: Any, patience: float) -> NotedFailure:
    return NotedFailure(Heartbeat(), strategy, patience)


def test_the_first_error_is_shown_at_once_and_kept(capsys: pytest.CaptureFixture[str]) -> None:
    strategy = Strategy()
    failure = noted(strategy, 60)
    first = raised(ValueError("bug"))
    failure.note(first)
    failure.note(raised(OSError("later")))
    said = capsys.readouterr().err
    assert said.startswith("kfit: a callback has failed; this call ends")
    assert "Traceback" in said
    assert said.endswith("ValueError: bug\n")
    assert failure.error is first
    assert failure.forget() is first
    assert failure.error is None
    assert strategy.marks == [True, False]
    assert strategy.reasons == []


def test_after_a_while_it_breaks_off_what_all_wait_for() -> None:
    strategy = Strategy()
    failure = noted(strategy, 0.05)
    failure.note(raised(ValueError("bug")))
    assert strategy.broken_off.wait(60)
    assert strategy.reasons == ["A peer has failed: ValueError"]
    failure.forget()


def test_it_waits_longer_where_hooks_take_long() -> None:
    strategy = Strategy()
    failure = noted(strategy, 0.05)
    failure.usual = 60.0
    failure.note(raised(ValueError("bug")))
    assert not strategy.broken_off.wait(1)
    failure.forget()


def test_a_lone_task_has_nobody_to_tell(capsys: pytest.CaptureFixture[str]) -> None:
    strategy = Strategy(workers=1)
    failure = noted(strategy, 0.05)
    failure.note(raised(ValueError("bug")))
    assert failure.forget() is not None
    assert (strategy.marks, strategy.reasons, capsys.readouterr().err) == ([], [], "")
