"""When a task hangs, and what is said before: with pulses that the tests make up."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kfit.heartbeat import Phase, Pulse
from kfit.heartbeat.phases import hook
from kfit.supervisor.hang_detection import Hang, Hangs, Limits
from tests.sweeps import only

LOOK = 0.5
HOOK = hook("on_epoch_end")
LONG = Limits().long


class Host:
    """Tasks whose pulses the test makes up, and a supervisor that looks at them."""

    def __init__(self, *names: str, limit: float | None = None, **pulse: Any) -> None:
        self.now = 1000.0
        self.hangs = Hangs(limit, self.now)
        made = {"in_call": True, "phase": Phase.STEP, "time": self.now, "marks_meetings": True}
        self.pulses = {
            name: Pulse(pid=index + 1, workers=len(names), **{**made, **pulse})
            for index, name in enumerate(names)
        }
        self.stopped: set[str] = set()
        self.said: list[str] = []

    def set(self, name: str, **changed: Any) -> None:
        self.pulses[name] = replace(self.pulses[name], **changed)

    def go(self, phase: int, *names: str, **changed: Any) -> None:
        """Tasks come to another phase."""
        for name in names or tuple(self.pulses):
            self.set(name, phase=phase, time=self.now, **changed)

    def beat(self, *names: str) -> None:
        for name in names or tuple(self.pulses):
            pulse = self.pulses[name]
            self.set(name, beats=pulse.beats + 1, step=pulse.step + 1, time=self.now)

    def look(self) -> Hang | None:
        hang = self.hangs.look(self.now, self.pulses, self.stopped)
        if hang is None:
            self.said += self.hangs.notices(self.now, self.pulses)
        return hang

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


def test_tasks_that_wait_for_each_other_outside_of_calls_are_no_error() -> None:
    """At the end of a `fit`, a heartbeat may be read between the slots that say so."""
    host = Host("worker 0", "worker 1", in_call=False, phase=Phase.PEERS)
    assert host.rest(100.0) is None
    host.stopped = {"worker 0"}
    host.rest(5.0)


@pytest.mark.parametrize(
    ("interval", "limit"), [(0.01, 10), (0.2, 10), (1.0, 10), (2.0, 10), (4.0, 20), (60.0, 300)]
)
def test_a_step_is_found_within_ten_seconds_or_five_times_the_median(
    interval: float, limit: float
) -> None:
    host = Host("worker 0", busy=1.0)
    host.train(20, interval)
    host.set("worker 0", busy=0.0)
    begin = host.now
    assert host.rest(limit - 1) is None
    hang = host.rest(1)
    assert hang is not None
    assert hang.culprits == hang.stalled == ("worker 0",)
    assert limit - 1 < host.now - begin <= limit
    assert hang.seconds == pytest.approx(host.now - begin)
    assert f"worker 0 hung: no progress for {hang.seconds:.0f} s, in a step" in str(hang)


def test_one_long_interval_does_not_change_the_median() -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    host.train(1, 8.5)
    host.train(3, 0.2)
    assert host.rest(9) is None
    assert host.rest(1) is not None


@pytest.mark.parametrize(
    "phase", only([HOOK], [Phase.STEP, Phase.READING_STEP, Phase.TRACING, HOOK])
)
def test_nothing_is_judged_outside_of_a_call(phase: int) -> None:
    host = Host("worker 0", phase=phase)
    host.train(10, 0.2)
    host.go(Phase.OUTSIDE, in_call=False)
    assert host.rest(10_000) is None
    assert host.said == []


@pytest.mark.parametrize(
    "phase", [HOOK, Phase.READING_STEP, Phase.INPUT, Phase.SAVING, Phase.RESTORING]
)
def test_the_users_code_has_a_minute_and_is_named_after_ten_seconds(phase: int) -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    host.go(phase, in_user_code=True, place="train.py:12")
    assert host.rest(9) is None
    assert host.said == []
    assert host.rest(1) is None
    (line,) = host.said
    assert line.startswith("worker 0 has made no progress for 10 s: it is ")
    assert "(train.py:12). It is ended as hung after 60 s without progress" in line
    assert line.endswith("; `--hang-timeout` changes that")
    assert host.rest(49) is None
    assert len(host.said) == 1
    hang = host.rest(1)
    assert hang is not None
    assert "train.py:12" in str(hang)


def test_a_step_with_code_of_the_users_in_it_has_a_minute_too() -> None:
    host = Host("worker 0", in_user_code=True, place="layer.py:3")
    assert host.rest(59) is None
    assert "in a step (layer.py:3)" in host.said[0]
    assert host.rest(1) is not None


def test_a_step_that_computes_is_given_more() -> None:
    host = Host("worker 0", busy=1.0)
    assert host.rest(LONG - 1) is None  # the first steps may be of any length
    host.train(4, 0.5)
    assert host.rest(59) is None
    assert host.rest(1) is not None


def test_a_first_step_that_waits_for_nothing_known_is_found() -> None:
    host = Host("worker 0")
    assert host.rest(59) is None
    assert len(host.said) == 1
    assert host.rest(1) is not None


def test_a_hook_may_take_again_what_it_took_before() -> None:
    host = Host("worker 0")
    for _ in range(2):
        host.train(10, 0.2)
        host.go(HOOK)
        assert host.rest(40) is None
        host.go(Phase.STEP)
    assert len(host.said) == 1  # of the first time
    host.go(HOOK)
    assert host.rest(190) is None
    assert len(host.said) == 2
    assert host.rest(11) is not None


@pytest.mark.parametrize("phase", [HOOK, Phase.INPUT, Phase.READING_STEP])
def test_a_hook_and_the_input_may_compute_for_long(phase: int) -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    host.go(phase, busy=1.0, in_user_code=True, place="train.py:12")
    assert host.rest(LONG - 1) is None
    (line,) = host.said
    assert "has made no progress for 10 s" in line
    assert f"(train.py:12). It is ended as hung after {LONG:.0f} s" in line
    assert host.rest(2) is not None
    host = Host("worker 0", limit=20.0)
    host.go(phase, busy=1.0)
    assert host.rest(20.5) is not None  # what the user said


def test_a_hook_that_has_computed_and_now_waits_has_a_minute() -> None:
    host = Host("worker 0")
    host.go(HOOK, busy=1.0)
    assert host.rest(120) is None
    host.set("worker 0", busy=0.05)
    assert host.rest(1) is not None


@pytest.mark.parametrize("phase", [Phase.TRACING, Phase.WORK, Phase.SKIPPING])
def test_compiling_may_take_long_but_a_loop_of_the_users_in_it_not(phase: Phase) -> None:
    host = Host("worker 0", phase=phase, limit=20.0)
    assert host.rest(1000) is None
    assert len(host.said) == 1
    host = Host("worker 0", phase=phase)
    assert host.rest(1000) is None
    host.go(phase, in_user_code=True)
    assert host.rest(59) is None
    assert host.rest(1) is not None


@pytest.mark.parametrize("phase", [Phase.STEP, Phase.INPUT, Phase.SAVING, Phase.PEERS, HOOK])
def test_a_limit_of_the_users_holds_everywhere(phase: int) -> None:
    host = Host("worker 0", limit=3.0, phase=phase)
    assert host.rest(3) is None
    assert host.rest(1) is not None


def test_a_limit_that_the_task_knows() -> None:
    host = Host("worker 0")
    host.set("worker 0", limit=120.0, phase=Phase.JOINING)
    assert host.rest(120) is None
    assert host.rest(1) is not None


def test_a_suspended_supervisor_starts_the_clocks_anew() -> None:
    host = Host("worker 0")
    host.train(10, 0.2)
    assert host.rest(8.5) is None
    host.now += 3600
    assert host.rest(9) is None
    assert host.rest(1) is not None


def test_a_step_does_not_usually_take_as_long_as_the_host_was_suspended() -> None:
    host = Host("worker 0")
    for _ in range(6):
        host.rest(1.0)
        host.now += 3600
        host.beat()
        host.look()
    assert host.rest(58) is None  # how long a step takes is unknown
    assert host.rest(2) is not None


def test_a_hook_does_not_take_as_long_as_the_host_was_suspended() -> None:
    host = Host("worker 0")
    host.go(hook("on_epoch_end"))
    host.rest(1.0)
    host.now += 3600
    host.rest(1.0)
    host.go(Phase.STEP)
    host.rest(1.0)
    host.go(hook("on_epoch_end"))
    assert host.rest(58) is None
    assert host.rest(2) is not None


def test_a_stopped_task_is_the_culprit_whatever_it_is_doing() -> None:
    host = Host("worker 0", "worker 1", "worker 2", phase=Phase.PEERS)
    host.set("worker 1", phase=Phase.TRACING)
    host.stopped = {"worker 1"}
    assert host.rest(9) is None
    hang = host.rest(1)
    assert hang is not None
    assert hang.culprits == ("worker 1",)
    assert set(hang.stalled) == {"worker 0", "worker 1", "worker 2"}
    assert "worker 1 hung: stopped by a signal" in str(hang)


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
    assert host.hangs.stopped(host.now, host.stopped) is None
    assert host.rest(2) is None
    hang = host.hangs.stopped(host.now, host.stopped)
    assert hang is not None
    assert (hang.culprits, hang.stopped) == (("worker 1",), True)
    host.stopped = set()
    host.rest(0.5)
    assert host.hangs.stopped(host.now, host.stopped) is None


def test_who_may_be_stopped() -> None:
    host = Host("worker 0")
    host.set("worker 0", pid=0)
    host.stopped = {"worker 0"}
    host.go(Phase.OUTSIDE, in_call=False)
    assert host.rest(1000) is None  # a program that knows nothing of kfit
    host.set("worker 0", pid=1)
    assert host.rest(1000) is None  # outside of a call


def test_the_task_behind_the_others_is_the_culprit() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.beat("worker 0")
    hang = host.rest(11)
    assert hang is not None
    assert hang.culprits == ("worker 1",)
    assert set(hang.stalled) == {"worker 0", "worker 1"}


def test_the_task_in_an_earlier_fit_is_behind_whatever_its_step() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.set("worker 0", fit=1, step=2)
    host.set("worker 1", fit=0, step=100)
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


@pytest.mark.parametrize("in_step", [False, True])
def test_who_waits_shares_the_excuse_of_its_peer(in_step: bool) -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.go(HOOK, "worker 1", place="train.py:9")
    waits = {"phase": Phase.STEP, "meeting_since": host.now} if in_step else {"phase": Phase.PEERS}
    host.set("worker 0", **waits)
    assert host.rest(59) is None
    (line,) = host.said
    assert "worker 1 has made no progress for 10 s: it is in on_epoch_end (train.py:9)" in line
    hang = host.rest(1)
    assert hang is not None
    assert hang.culprits == ("worker 1",)
    assert set(hang.stalled) == {"worker 0", "worker 1"}


def test_steps_whose_waiting_cannot_be_seen_share_it_as_well() -> None:
    host = Host("worker 0", "worker 1", marks_meetings=False)
    host.train(10, 0.2)
    host.go(HOOK, "worker 1")
    assert host.rest(59) is None


def test_when_all_wait_for_each_other_they_hang() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.go(Phase.PEERS)
    assert host.rest(9) is None
    hang = host.rest(1)
    assert hang is not None
    assert hang.culprits == ("worker 0", "worker 1")


def test_the_clock_of_all_begins_when_the_last_one_waits() -> None:
    host = Host("worker 0", "worker 1")
    host.train(10, 0.2)
    host.go(HOOK, "worker 1")
    host.go(Phase.PEERS, "worker 0")
    assert host.rest(50) is None
    host.go(Phase.PEERS, "worker 1")
    assert host.rest(9) is None
    assert host.rest(1) is not None


def test_who_waits_for_a_task_outside_of_a_call_says_so() -> None:
    host = Host("worker 0", "worker 1", phase=Phase.PEERS)
    host.set("worker 1", phase=Phase.OUTSIDE, in_call=False, place="train.py:3")
    assert host.rest(LONG - 1) is None
    (line,) = host.said
    assert "worker 0 has made no progress" in line
    assert "worker 1 is outside of `fit`, `evaluate` and `predict` (train.py:3)" in line


def test_a_peer_that_ended_is_not_waited_for() -> None:
    host = Host("worker 0", "worker 1", phase=Phase.PEERS)
    host.set("worker 1", phase=Phase.OUTSIDE, in_call=False)
    host.rest(1)
    del host.pulses["worker 1"]
    assert host.rest(8) is None
    assert host.rest(2) is not None


def test_peers_of_other_supervisors_are_judged_by_these() -> None:
    host = Host("worker 0", phase=Phase.PEERS)
    host.set("worker 0", workers=2)
    assert host.rest(LONG - 1) is None
    assert len(host.said) == 1
    assert host.rest(2) is not None


class Truth(RuleBasedStateMachine):
    """Any history of two workers; what may be ended is said by a model that knows the truth."""

    @initialize()
    def begin(self) -> None:
        self.host = Host("worker 0", "worker 1")
        self.outside = {"worker 0": False, "worker 1": False}

    names = st.sampled_from(["worker 0", "worker 1"])

    @rule(name=names, phase=st.sampled_from([Phase.STEP, Phase.READING_STEP, Phase.PEERS, HOOK]))
    def go(self, name: str, phase: int) -> None:
        self.outside[name] = False
        self.host.go(phase, name, in_call=True)

    @rule(name=names)
    def leave(self, name: str) -> None:
        self.outside[name] = True
        self.host.go(Phase.OUTSIDE, name, in_call=False)

    @rule(name=names)
    def beat(self, name: str) -> None:
        if not self.outside[name]:
            self.host.beat(name)

    @rule(seconds=st.floats(0.5, 70))
    def rest(self, seconds: float) -> None:
        before = len(self.host.said)
        hang = self.host.rest(seconds)
        pulses = self.host.pulses
        quiet = {name: self.host.now - pulse.time for name, pulse in pulses.items()}
        for name in self.host.pulses if hang is None else hang.culprits:
            if hang is not None:
                assert not self.outside[name]
                assert quiet[name] >= 8.9
                if pulses[name].phase in (HOOK, Phase.READING_STEP):
                    assert quiet[name] >= 58.9
            elif pulses[name].phase == Phase.PEERS and all(
                pulses[each].phase == Phase.PEERS for each in pulses
            ):
                assert min(quiet.values()) <= 10 + 5 * 70
        assert len(self.host.said) <= before + 2
        if hang is not None:
            self.begin()

    @invariant()
    def nobody_outside_is_spoken_of(self) -> None:
        if hasattr(self, "host"):
            for line in self.host.said:
                assert line.startswith("worker ")
                assert "`--hang-timeout`" in line


TestTruth = Truth.TestCase
TestTruth.settings = settings(max_examples=40, stateful_step_count=12, deadline=None)
