from dataclasses import replace
from typing import Any

import pytest

from kfit.heartbeat import UNHURRIED_LIMIT, Pulse
from kfit.launching.hangs import Hang, Hangs

LOOK = 0.5


class Host:
    """Tasks whose pulses the test makes up, and a supervisor that looks at them."""

    def __init__(self, *names: str, limit: float | None = None) -> None:
        self.now = 1000.0
        self.hangs = Hangs(limit, self.now)
        self.pulses = {name: Pulse(pid=index + 1) for index, name in enumerate(names)}
        self.stopped: set[str] = set()

    def set(self, name: str, **changed: Any) -> None:
        self.pulses[name] = replace(self.pulses[name], **changed)

    def beat(self, *names: str) -> None:
        for name in names or tuple(self.pulses):
            pulse = self.pulses[name]
            self.set(
                name, beats=pulse.beats + 1, step=pulse.step + 1, time=self.now, finished=False
            )

    def look(self) -> Hang | None:
        return self.hangs.look(self.now, self.pulses, self.stopped)

    def rest(self, seconds: float, beating: tuple[str, ...] = ()) -> Hang | None:
        """Lets time pass, and looks, until something hangs or the seconds are over."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + LOOK)
            if beating:
                self.beat(*beating)
            if hang := self.look():
                return hang
        return None

    def train(self, beats: int, interval: float) -> None:
        for _ in range(beats):
            assert self.rest(interval) is None
            self.beat()


@pytest.mark.parametrize(
    ("interval", "limit"), [(0.01, 10), (0.2, 10), (1.0, 10), (2.0, 10), (4.0, 20), (60.0, 300)]
)
def test_it_is_found_within_ten_seconds_or_five_times_the_median(
    interval: float, limit: float
) -> None:
    host = Host("worker 0")
    host.train(20, interval)
    begin = host.now
    assert host.rest(limit - 1) is None
    hang = host.rest(1)
    assert hang is not None
    assert hang.culprits == hang.stalled == ("worker 0",)
    assert limit - 1 < host.now - begin <= limit
    assert hang.seconds == pytest.approx(host.now - begin)
    assert f"worker 0 hung: no progress for {hang.seconds:.0f} s" in str(hang)


def test_one_long_interval_does_not_change_the_median() -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    host.train(1, 8.5)
    host.train(3, 0.2)
    assert host.rest(9) is None
    assert host.rest(1) is not None


def test_beats_faster_than_looks() -> None:
    host = Host("worker 0")
    for _ in range(5):
        host.now += 0.01
        host.beat()
    assert host.rest(8.9) is None
    assert host.rest(1) is not None


def test_nothing_is_judged_before_the_first_beat() -> None:
    assert Host("worker 0").rest(10_000) is None


def test_the_first_beats_do_not_tell_the_rhythm() -> None:
    host = Host("worker 0")
    host.train(3, 0.2)
    assert host.rest(UNHURRIED_LIMIT - 1) is None
    assert host.rest(2) is not None


def test_a_fixed_limit_holds_from_the_first_beat() -> None:
    host = Host("worker 0", limit=3.0)
    assert host.rest(100) is None
    host.beat()
    assert host.rest(3) is None
    assert host.rest(1) is not None


@pytest.mark.parametrize("limit", [None, 3.0])
def test_unhurried_has_a_limit_of_its_own(limit: float | None) -> None:
    host = Host("worker 0", limit=limit)
    host.train(10, 0.2)
    host.set("worker 0", unhurried_since=host.now, unhurried_limit=100.0)
    assert host.rest(100) is None
    assert host.rest(1) is not None


def test_unhurried_before_the_first_beat() -> None:
    host = Host("worker 0")
    host.set("worker 0", unhurried_since=host.now, unhurried_limit=60.0)
    assert host.rest(60) is None
    assert host.rest(1) is not None


def test_leaving_unhurried_starts_the_clock_anew() -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    host.set("worker 0", unhurried_since=host.now, unhurried_limit=100.0)
    assert host.rest(90) is None
    host.set("worker 0", unhurried_since=None, time=host.now)
    assert host.rest(9) is None
    host.beat()
    assert host.hangs._rhythms["worker 0"].median < 1
    assert host.rest(9) is None
    assert host.rest(1) is not None


def test_what_follows_the_training_is_not_judged() -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    host.set("worker 0", finished=True)
    assert host.rest(10_000) is None
    host.train(4, 0.2)
    assert host.hangs._rhythms["worker 0"].median < 1
    assert host.rest(11) is not None


def test_a_suspended_supervisor_starts_the_clocks_anew() -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    assert host.rest(8.5) is None
    host.now += 3600
    assert host.rest(9) is None
    assert host.rest(1) is not None


def test_a_stopped_task_is_the_culprit() -> None:
    host = Host("worker 0", "worker 1", "worker 2")
    host.train(10, 0.2)
    host.stopped = {"worker 1"}
    hang = host.rest(11)
    assert hang is not None
    assert hang.culprits == ("worker 1",)
    assert hang.stalled == ("worker 0", "worker 1", "worker 2")
    assert "worker 1 hung: stopped by a signal" in str(hang)


def test_a_stopped_task_hangs_whatever_it_is_doing() -> None:
    host = Host("worker 0", "worker 1")
    host.set("worker 1", unhurried_since=host.now, unhurried_limit=100.0)
    host.rest(5)
    host.stopped = {"worker 1"}
    assert host.rest(9) is None
    hang = host.rest(1)
    assert hang is not None
    assert hang.culprits == ("worker 1",)
    assert hang.stopped


def test_a_task_that_was_stopped_for_a_moment_goes_on() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.stopped = {"worker 1"}
    assert host.rest(8) is None
    host.stopped = set()
    host.beat()
    assert host.rest(8) is None


def test_who_is_stopped_is_known_before_it_hangs() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.stopped = {"worker 1"}
    assert host.rest(0.5) is None
    assert host.hangs.stopped(host.now) is None
    assert host.rest(2) is None
    hang = host.hangs.stopped(host.now)
    assert hang is not None
    assert (hang.culprits, hang.stopped) == (("worker 1",), True)
    host.stopped = set()
    host.rest(0.5)
    assert host.hangs.stopped(host.now) is None


def test_a_program_without_a_heartbeat_may_be_stopped() -> None:
    host = Host("worker 0")
    host.set("worker 0", pid=0)
    host.stopped = {"worker 0"}
    assert host.rest(1000) is None


def test_the_task_behind_the_others_is_the_culprit() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.beat("worker 0")
    hang = host.rest(11)
    assert hang is not None
    assert hang.culprits == ("worker 1",)
    assert set(hang.stalled) == {"worker 0", "worker 1"}


def test_the_task_that_was_quiet_first_is_the_culprit() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.now += 1.5
    # As in an evaluation, where the step stays.
    host.set("worker 0", beats=11, time=host.now)
    hang = host.rest(11)
    assert hang is not None
    assert hang.culprits == ("worker 1",)


def test_tasks_that_get_on_are_not_named() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    hang = host.rest(20, beating=("worker 0",))
    assert hang is not None
    assert hang.stalled == ("worker 1",)


def test_all_are_named_where_the_culprit_cannot_be_told() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    hang = host.rest(11)
    assert hang is not None
    assert hang.culprits == ("worker 0", "worker 1")
    assert "worker 0, worker 1 hung together" in str(hang)
