"""The decisions of the supervisor, with made-up tasks and a clock that the tests turn."""

import signal
from collections.abc import Collection, Sequence
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kfit.heartbeat import Reached, TaskError
from kfit.supervisor.hang_detection import Hang
from kfit.supervisor.policy import SupervisorPolicy
from kfit.supervisor.process_group import TaskExit, TaskStartError
from kfit.supervisor.restarts import Restarts

GRACE = 15.0
PATIENCE = 3.0
STACK_DUMP_DELAY = 1.0
KILL_TIMEOUT = 10.0
HEARING = 2.0
NAMES = ["worker 0", "worker 1", "worker 2"]
EVALUATOR = "evaluator 0"
SERVER, OTHER_SERVER, PS = "server 0", "server 1", "ps 0"


class FakeTasks:
    """Tasks that do nothing by themselves, and remember what was asked of them."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)
        self.alive = set(names)
        self.places = dict.fromkeys(names, Reached())
        self.signals: list[int] = []
        self.signalled: list[list[str]] = []
        self.kills = 0
        self.dumped: list[str] = []
        self.errors: dict[str, TaskError] = {}
        self.stop_notes: dict[str, str] = {}
        self.closed = False
        self.confirmed = False

    @property
    def dispensable(self) -> list[str]:
        return [name for name in self.names if name in (EVALUATOR, SERVER, OTHER_SERVER)]

    @property
    def servers(self) -> list[str]:
        return [name for name in self.names if name in (SERVER, OTHER_SERVER, PS)]

    def signal(self, signum: int, names: Collection[str] | None = None) -> None:
        self.signals.append(signum)
        self.signalled.append(sorted(self.alive if names is None else names))

    def kill(self) -> None:
        self.kills += 1

    def dump_stacks(self, names: Sequence[str]) -> None:
        self.dumped += names

    def drain(self) -> None: ...

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    def confirm_ends(self) -> None:
        assert not self.alive
        assert not self.closed
        self.confirmed = True

    def error(self, name: str) -> TaskError | None:
        return self.errors.get(name)

    def tail(self, name: str) -> list[str]:
        return [f"last words of {name}"]

    def stop_note(self, name: str) -> str:
        return self.stop_notes.get(name, "")

    def reached(self, name: str) -> Reached:
        return self.places[name]


class World:
    """A policy, its tasks and its time."""

    def __init__(self, budget: int = 0, grace: float = GRACE, names: Sequence[str] = NAMES) -> None:
        self.names = names
        self.now = 0.0
        self.lines: list[str] = []
        self.generations: list[FakeTasks] = []
        self.starts: list[float] = []
        self.start_fails = False
        self.noted = 0
        self.life = SupervisorPolicy(
            self.start,
            restarts=Restarts(budget, lambda: 0.0),
            grace=grace,
            say=self.lines.append,
            clock=lambda: self.now,
        )
        self.life.begin()

    @property
    def tasks(self) -> FakeTasks:
        return self.generations[-1]

    def start(self, number: int) -> FakeTasks:
        assert number == len(self.generations)
        assert not any(tasks.alive for tasks in self.generations)
        if self.start_fails:
            raise TaskStartError("worker 0 could not be started")
        self.starts.append(self.now)
        self.generations.append(FakeTasks(self.names))
        return self.tasks

    def step(self, step: int, fit: int = 0) -> None:
        for name in self.tasks.alive:
            self.tasks.places[name] = Reached(fit, step)

    def exit(self, name: str, code: int) -> None:
        self.tasks.alive.remove(name)
        self.life.handle(TaskExit(name, code))

    def note(
        self, name: str, summary: str, *, is_consequence: bool = False, is_permanent: bool = False
    ) -> None:
        self.noted += 1
        error = TaskError(float(self.noted), summary, is_consequence, is_permanent)
        self.tasks.errors[name] = error

    def exit_all(self, code: int) -> None:
        for name in sorted(self.tasks.alive):
            self.exit(name, code)

    def wait(self) -> float:
        """Lets the time pass until something is due; returns how long that took."""
        assert self.life.deadline is not None
        waited, self.now = self.life.deadline - self.now, self.life.deadline
        self.life.handle(None)
        return waited


def test_all_end_well() -> None:
    world = World(budget=3)
    world.exit_all(0)
    assert world.life.exit_code == 0
    assert world.lines == []
    assert world.tasks.closed


@pytest.mark.parametrize(
    ("code", "patience"), [(1, PATIENCE), (-9, PATIENCE), (143, GRACE), (-15, GRACE), (138, GRACE)]
)
def test_the_others_have_little_time_after_a_failure(code: int, patience: float) -> None:
    world = World()
    world.exit("worker 1", code)
    assert world.tasks.signals == [signal.SIGTERM]
    assert world.wait() == patience
    assert world.tasks.kills == 1
    world.exit_all(-9)
    assert world.life.exit_code == (code if code > 0 else 128 - code)


def test_a_short_grace_is_the_patience_too() -> None:
    world = World(grace=0.5)
    world.exit("worker 1", 1)
    assert world.wait() == 0.5


def test_a_crash_loop_is_reported_whole() -> None:
    world = World(budget=2)
    for code in (1, -9, 3):
        world.step(7)
        world.exit("worker 1", code)
        world.exit_all(-15)
        if world.life.exit_code is None:
            world.wait()
    assert world.life.exit_code == 3
    assert (
        world.lines[-4:]
        == [
            "gave up; what ended each attempt:",
            "  attempt 1: worker 1 ended with exit code 1 after step 7: last words of worker 1",
            "  attempt 2: worker 1 was killed by SIGKILL after step 7",
            "  attempt 3: worker 1 ended with exit code 3 after step 7: last words of worker 1",
            "error: worker 1 ended with exit code 3 after step 7: last words of worker 1",
        ][1:]
    )
    assert "gave up; what ended each attempt:" in world.lines


def test_a_preempted_task_costs_no_restart() -> None:
    world = World(budget=1)
    for generation in range(1, 10):
        world.step(generation)
        world.exit("worker 0", 143)
        world.exit_all(143)
        assert world.wait() == 0.25
    assert len(world.generations) == 10
    assert world.lines[-1] == "attempt 10 starts in 0.2 s (a preemption, which costs no restart)"
    assert "worker 0 ended with exit code 143, preempted after step 9" in world.lines[-2]


def test_a_lone_task_says_why_it_starts_again() -> None:
    world = World(budget=2, names=["worker 0"])
    world.step(3)
    world.exit("worker 0", -9)
    assert world.lines == [
        "worker 0 was killed by SIGKILL after step 3; attempt 2 starts in 0.2 s "
        "(restart 1 of at most 2 in a row)"
    ]


@pytest.mark.parametrize("budget", [0, 1])
def test_a_lone_task_does_not_repeat_of_another_one_what_it_has_printed(budget: int) -> None:
    """Each host has a `kfit run` of its own, with one task."""
    world = World(budget=budget, names=["worker 0"])
    world.step(3)
    world.note("worker 0", "ExchangeError: worker 1 is gone. Look there.", is_consequence=True)
    printed = "kfit: this task fails because another one has: worker 1 is gone. Look there."
    world.tasks.tail = lambda name: [printed]  # type: ignore[method-assign]
    world.exit("worker 0", 1)
    told = "worker 0 ended with exit code 1 after step 3 (ExchangeError, above)"
    if not budget:
        assert world.lines == [f"error: {told}"]
        return
    assert world.lines == [f"{told}; attempt 2 starts in 0.2 s (restart 1 of at most 1 in a row)"]
    world.wait()
    world.exit("worker 0", 0)
    assert world.lines[-1] == "worker 0 ended well in attempt 2"


def test_a_sentence_that_goes_on_has_no_full_stop() -> None:
    world = World(budget=1)
    world.note("worker 0", "OSError: the disk is full. Free space.")
    world.exit("worker 0", 1)
    assert world.lines == [
        "worker 0 ended with exit code 1: OSError: the disk is full. Free space; stopping "
        "worker 1, worker 2"
    ]


@pytest.mark.parametrize(
    ("code", "step", "budget", "is_advised"),
    [(-9, 7, 0, True), (143, 7, 0, True), (1, 7, 0, False), (-9, 0, 0, False), (-9, 7, 1, False)],
)
def test_how_a_training_goes_on_that_no_error_has_ended(
    code: int, step: int, budget: int, is_advised: bool
) -> None:
    world = World(budget=budget)
    for _ in range(budget + 1):
        world.step(step)
        world.exit("worker 1", code)
        world.exit_all(-15)
        if world.life.exit_code is None:
            world.wait()
    advice = "the same command resumes at the last snapshot, and `--max-restarts 3` does so by"
    assert (advice in world.lines[-1]) == is_advised


def test_the_cause_is_named_if_its_consequence_came_first_and_nobody_is_left() -> None:
    world = World(budget=2)
    world.step(3)
    world.note("worker 0", "ExchangeError: gone", is_consequence=True)
    world.exit("worker 0", 1)
    world.exit("worker 1", -9)
    assert world.lines == [] or "worker 2" in world.names
    for name in sorted(world.tasks.alive):
        world.exit(name, -9)
    assert "worker 1 was killed by SIGKILL after step 3" in world.lines[0]


def test_the_others_go_on_without_one_beside_them() -> None:
    world = World(budget=1, names=["worker 0", "worker 1", EVALUATOR])
    world.exit(EVALUATOR, 5)
    assert world.lines == [
        "evaluator 0 ended with exit code 5; without it go on: worker 0, worker 1"
    ]
    assert world.tasks.signals == []
    world.exit("worker 0", 0)
    assert world.life.exit_code is None
    world.exit("worker 1", 0)
    # Training was done, but the run is no success.
    assert world.life.exit_code == 5
    assert world.lines[-1] == (
        "error: evaluator 0 ended with exit code 5: last words of evaluator 0"
    )
    assert len(world.generations) == 1


def test_the_one_beside_may_be_the_last() -> None:
    world = World(names=["worker 0", EVALUATOR])
    world.exit("worker 0", 0)
    assert world.life.exit_code is None
    assert world.tasks.signals == []
    world.exit(EVALUATOR, 0)
    assert (world.life.exit_code, world.lines) == (0, [])


def test_when_a_worker_fails_the_one_beside_starts_again_too() -> None:
    world = World(budget=1, names=["worker 0", EVALUATOR])
    world.exit(EVALUATOR, 5)
    world.exit("worker 0", -9)
    world.wait()
    assert world.tasks.alive == {"worker 0", EVALUATOR}
    world.exit_all(0)
    assert world.life.exit_code == 0
    world = World(budget=1, names=["worker 0", EVALUATOR])
    world.exit("worker 0", -9)
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit(EVALUATOR, 143)
    assert world.wait() == 0.25


def test_servers_are_stopped_when_nobody_needs_them() -> None:
    world = World(names=["chief 0", SERVER, PS, EVALUATOR])
    world.exit("chief 0", 0)
    assert world.tasks.signals == []
    world.exit(EVALUATOR, 0)
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit(SERVER, 143)
    world.exit(PS, -15)
    assert (world.life.exit_code, world.lines) == (0, [])


def test_training_goes_on_without_a_server_beside_it_and_is_a_success() -> None:
    world = World(names=["chief 0", SERVER, OTHER_SERVER, PS])
    world.exit(SERVER, 1)
    assert world.lines == [
        "server 0 ended with exit code 1; without it go on: chief 0, server 1, ps 0"
    ]
    world.exit("chief 0", 0)
    world.exit(OTHER_SERVER, 0)
    world.exit(PS, 0)
    assert world.life.exit_code == 0


def test_without_any_server_beside_it_training_ends() -> None:
    world = World(names=["chief 0", SERVER, OTHER_SERVER, PS])
    world.exit(SERVER, 1)
    world.exit(OTHER_SERVER, 3)
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit("chief 0", 143)
    world.exit(PS, 0)
    assert world.life.exit_code == 3


def test_a_ps_that_dies_ends_training() -> None:
    world = World(names=["chief 0", SERVER, PS])
    world.exit(PS, -9)
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit(SERVER, 143)
    world.exit("chief 0", 1)
    assert world.life.exit_code == 137


def test_a_chief_that_fails_stops_its_servers() -> None:
    world = World(names=["chief 0", SERVER, PS])
    world.exit("chief 0", 1)
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit(SERVER, 143)
    world.exit(PS, 0)
    assert world.life.exit_code == 1


def test_servers_run_until_the_chief_has_saved_after_a_signal() -> None:
    world = World(names=["chief 0", SERVER, PS])
    world.life.handle(signal.SIGTERM)
    assert world.tasks.signalled == [["chief 0"]]
    world.exit("chief 0", 143)
    assert world.tasks.signalled == [["chief 0"], [PS, SERVER]]
    world.exit(SERVER, 143)
    world.exit(PS, 0)
    assert world.life.exit_code == 143


def test_servers_that_do_not_stop_are_killed() -> None:
    world = World(names=["chief 0", PS])
    world.exit("chief 0", 0)
    assert world.wait() == GRACE
    assert world.tasks.kills == 1
    world.exit(PS, -9)
    assert world.life.exit_code == 0


def test_a_preempted_task_is_the_cause_whatever_it_had_recorded() -> None:
    world = World(budget=1)
    world.step(3)
    world.note("worker 1", "PeerFailedError: x", is_consequence=True)
    world.exit("worker 1", 143)
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit_all(1)
    world.wait()
    assert len(world.generations) == 2
    assert any("a preemption, which costs no restart" in line for line in world.lines)


def test_who_failed_first_is_named_though_its_victim_ends_first() -> None:
    world = World(budget=0)
    world.step(4)
    world.note("worker 1", "PeerFailedError: the chief could not save", is_consequence=True)
    world.exit("worker 1", 1)
    assert world.tasks.signals == []
    assert world.lines == []
    world.note("worker 0", "OSError: [Errno 28] No space left on device")
    world.exit("worker 0", 1)
    assert world.lines == [
        "worker 0 ended with exit code 1 after step 4: OSError: [Errno 28] No space left on "
        "device; stopping worker 2"
    ]
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit("worker 2", -15)
    assert world.life.exit_code == 1
    assert world.lines[-1] == (
        "error: worker 0 ended with exit code 1 after step 4: OSError: [Errno 28] No space left on "
        "device"
    )


def test_an_error_that_comes_again_at_the_same_step_ends_the_restarts() -> None:
    world = World(budget=9)
    for _ in range(2):
        if world.life.deadline is not None:
            world.wait()
        world.step(7)
        world.note("worker 1", "ValueError: wrong")
        world.exit("worker 1", 1)
        world.exit_all(-15)
    assert world.life.exit_code == 1
    assert len(world.generations) == 2
    assert any("the same error ended two attempts in a row" in line for line in world.lines)
    assert (
        world.lines[-1] == "error: worker 1 ended with exit code 1 after step 7: ValueError: wrong"
    )


def test_an_error_at_the_same_step_of_another_fit_is_another_one() -> None:
    world = World(budget=9)
    for fit in range(4):
        if world.life.deadline is not None:
            world.wait()
        world.step(3, fit)
        world.note("worker 1", "ValueError: wrong")
        world.exit("worker 1", 1)
        world.exit_all(-15)
    assert len(world.generations) == 4
    assert world.wait() == 0.25  # each was the first failure since there was progress
    assert [line.partition(": V")[0] for line in world.lines if "exit code 1" in line] == [
        "worker 1 ended with exit code 1 after step 3",
        "worker 1 ended with exit code 1 after step 3 of the second `fit`",
        "worker 1 ended with exit code 1 after step 3 of the third `fit`",
        "worker 1 ended with exit code 1 after step 3 of the 4th `fit`",
    ]


def test_an_error_that_no_restart_can_mend_costs_none() -> None:
    world = World(budget=9)
    world.note("worker 1", "SnapshotMismatchError: other layers", is_permanent=True)
    world.exit("worker 1", 1)
    world.exit_all(-15)
    assert (world.life.exit_code, len(world.generations)) == (1, 1)
    assert any("a restart would end by the same error, so" in line for line in world.lines)
    assert world.lines[-1].endswith("exit code 1: SnapshotMismatchError: other layers")


def test_a_wrong_command_line_costs_no_restart() -> None:
    world = World(budget=9)
    world.exit("worker 1", 2)
    world.exit_all(-15)
    assert (world.life.exit_code, len(world.generations)) == (2, 1)
    assert any(line.startswith("exit code 2 means") for line in world.lines)
    unlimited = World(budget=0)
    unlimited.exit("worker 1", 2)
    unlimited.exit_all(-15)
    assert not any(line.startswith("exit code 2 means") for line in unlimited.lines)


@pytest.mark.parametrize("code", [-9, 1])
def test_kills_and_lost_peers_use_all_restarts(code: int) -> None:
    world = World(budget=3)
    for _ in range(4):
        if world.life.deadline is not None:
            world.wait()
        if code > 0:
            world.note("worker 1", "ExchangeError: gone", is_consequence=True)
        world.exit("worker 1", code)
        world.exit_all(-15)
    assert len(world.generations) == 4
    assert not any("the same error" in line for line in world.lines)


@pytest.mark.parametrize("budget", [0, 1])
def test_an_error_of_all_tasks_is_said_once_and_blames_none(budget: int) -> None:
    world = World(budget=budget)
    world.step(4)
    for name in NAMES:
        world.note(name, "ValueError: `x` is wrong")
    world.exit("worker 1", 1)
    world.exit_all(1)
    common = "all 3 tasks failed by the same error after step 4: ValueError: `x` is wrong"
    if budget:
        assert world.lines[0] == f"{common}; stopping worker 0, worker 2"
    else:
        assert world.lines == [f"error: {common}"]


def test_an_error_of_two_tasks_is_one_of_both() -> None:
    world = World(names=NAMES[:2])
    for name in NAMES[:2]:
        world.note(name, "ValueError: `x` is wrong")
    world.exit("worker 1", 1)
    world.exit_all(1)
    assert world.lines == ["error: both tasks failed by the same error: ValueError: `x` is wrong"]


def test_a_task_that_failed_by_itself_is_not_said_to_fail_because_of_another() -> None:
    world = World()
    world.note("worker 0", "ValueError: first")
    world.note("worker 1", "ValueError: second")
    world.exit("worker 1", 1)
    assert world.lines == [
        "worker 0 failed: ValueError: first; worker 1 ended with exit code 1: ValueError: second; "
        "stopping worker 0, worker 2 as well"
    ]
    world.exit_all(-15)
    assert world.lines[-1] == "error: worker 0 ended with exit code 1: ValueError: first"


def test_a_cause_that_is_known_already_is_not_waited_for() -> None:
    world = World()
    world.note("worker 0", "OSError: disk")
    world.note("worker 1", "PeerFailedError: x", is_consequence=True)
    world.exit("worker 1", 1)
    assert world.lines == [
        "worker 0 failed, and so worker 1 ended with exit code 1; stopping worker 0, worker 2 as "
        "well"
    ]
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit_all(-15)
    assert world.lines[-1] == "error: worker 0 ended with exit code 1: OSError: disk"
    assert world.life.exit_code == 1


def test_a_victim_is_named_where_nobody_else_speaks() -> None:
    world = World()
    world.note("worker 1", "ExchangeError: gone", is_consequence=True)
    world.exit("worker 1", 1)
    assert world.wait() == HEARING
    assert world.tasks.signals == [signal.SIGTERM]
    world.exit_all(-15)
    assert world.lines[-1] == "error: worker 1 ended with exit code 1: ExchangeError: gone"


def test_who_is_killed_while_a_victim_waits_is_the_cause() -> None:
    world = World()
    world.note("worker 1", "ExchangeError: gone", is_consequence=True)
    world.exit("worker 1", 1)
    world.exit("worker 0", -9)
    world.exit_all(-15)
    assert world.lines[-1].startswith("error: worker 0 was killed by SIGKILL")
    assert world.life.exit_code == 137


def test_an_error_that_a_task_has_dealt_with_is_no_cause() -> None:
    world = World()
    world.note("worker 0", "ValueError: caught")
    world.exit("worker 0", 0)
    world.note("worker 1", "KeyError: 'x'")
    world.exit("worker 1", 1)
    world.exit_all(-15)
    assert world.lines[-1] == "error: worker 1 ended with exit code 1: KeyError: 'x'"


def test_a_hang_shows_its_stacks_and_is_killed() -> None:
    world = World(budget=1)
    world.step(5)
    world.life.handle(Hang(("worker 1",), ("worker 0", "worker 1"), 11.0))
    assert world.tasks.dumped == ["worker 0", "worker 1"]
    assert world.tasks.signals == []
    assert world.wait() == STACK_DUMP_DELAY
    assert world.tasks.kills == 1
    world.exit_all(-9)
    assert not any("request to stop" in line for line in world.lines)
    world.wait()
    world.life.handle(Hang(("worker 1",), ("worker 1",), 11.0))
    world.wait()
    world.exit_all(-9)
    assert world.life.exit_code == 137
    assert world.lines[-1] == "error: worker 1 hung: no progress for 11 s"


def test_a_stopped_task_is_not_asked_for_its_stacks() -> None:
    world = World()
    world.life.handle(Hang(("worker 1",), ("worker 0", "worker 1"), 11.0, stopped=True))
    assert world.tasks.dumped == ["worker 0"]
    assert world.wait() == STACK_DUMP_DELAY
    world = World()
    world.life.handle(Hang(("worker 1",), ("worker 1",), 11.0, stopped=True))
    assert world.lines == ["worker 1 hung: stopped by a signal (SIGSTOP) for 11 s"]
    assert world.wait() == 0
    assert world.tasks.kills == 1


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR1])
def test_who_is_told_to_stop_never_restarts(signum: int) -> None:
    world = World(budget=5)
    world.step(1)
    world.life.handle(signum)
    assert world.tasks.signals == [signum]
    world.exit_all(128 + signum)
    assert world.life.exit_code == 128 + signum
    assert len(world.generations) == 1


def test_told_to_stop_while_a_failure_ends_the_others() -> None:
    world = World(budget=5)
    world.exit("worker 0", 1)
    world.life.handle(signal.SIGTERM)
    world.exit_all(-15)
    assert world.life.exit_code == 1
    assert len(world.generations) == 1


def test_told_to_stop_before_the_next_start() -> None:
    world = World(budget=5)
    world.exit("worker 0", 1)
    world.exit_all(-15)
    world.life.handle(signal.SIGINT)
    assert world.life.exit_code == 130
    assert world.life.deadline is None
    assert world.lines[-1].startswith(
        "stopped by SIGINT; before the next start; worker 0 ended with exit code 1"
    )


def test_the_last_line_of_a_stopped_run_says_what_was_saved() -> None:
    world = World(budget=5)
    world.life.handle(signal.SIGINT)
    world.tasks.stop_notes["worker 0"] = "after step 7; saved in backup"
    world.exit_all(-2)
    assert world.life.exit_code == 130
    assert world.lines[-1] == "stopped by SIGINT after step 7; saved in backup"


def test_what_a_task_was_told_of_anothers_signal_does_not_matter_to_its_own_supervisor() -> None:
    world = World()
    world.life.handle(signal.SIGINT)
    world.tasks.stop_notes["worker 0"] = "on another worker after step 7; saved in backup"
    world.exit_all(-2)
    assert world.lines[-1] == "stopped by SIGINT after step 7; saved in backup"


@pytest.mark.parametrize(("code", "name"), [(-2, "SIGINT"), (143, "SIGTERM")])
def test_tasks_that_a_signal_to_another_supervisor_stops_did_not_fail(code: int, name: str) -> None:
    world = World(names=NAMES[1:])
    for task in NAMES[1:]:
        world.tasks.stop_notes[task] = "on another worker after step 7; saved in backup"
    world.exit("worker 1", code)
    world.exit_all(code)
    assert world.life.exit_code == (130 if code < 0 else code)
    assert world.lines[0].startswith(f"worker 1 was stopped by {name} on another worker")
    assert world.lines[-1] == f"stopped by {name} on another worker after step 7; saved in backup"


def test_a_task_that_got_its_signal_itself_was_killed_by_it() -> None:
    world = World(names=NAMES[1:2])
    world.tasks.stop_notes["worker 1"] = "after step 7; saved in backup"
    world.exit("worker 1", -2)
    assert world.lines[-1] == "error: worker 1 was killed by SIGINT"


def test_a_task_that_survives_is_not_replaced() -> None:
    world = World(budget=5)
    world.exit("worker 0", 1)
    assert [world.wait(), world.wait()] == [PATIENCE, KILL_TIMEOUT]
    assert world.life.exit_code == 1
    assert any("survived SIGKILL and may still run: worker 1" in line for line in world.lines)


def test_a_program_that_is_gone_ends_the_restarts() -> None:
    world = World(budget=5)
    world.exit("worker 0", 1)
    world.exit_all(-15)
    world.start_fails = True
    world.wait()
    assert world.life.exit_code == 127


def test_a_second_ctrl_c_kills_in_every_generation() -> None:
    world = World(budget=5)
    world.exit("worker 0", 1)
    world.exit_all(-15)
    world.wait()
    world.life.handle(signal.SIGINT)
    assert world.tasks.kills == 0
    world.life.handle(signal.SIGINT)
    assert world.tasks.kills == 1


class Lives(RuleBasedStateMachine):
    """Whatever happens to tasks, in any order: a model of what may follow, kept apart."""

    @initialize(budget=st.integers(0, 4), grace=st.sampled_from([0.5, GRACE]))
    def begin(self, budget: int, grace: float) -> None:
        self.begin_run(budget, grace)

    def begin_run(self, budget: int, grace: float) -> None:
        self.budget, self.grace = budget, grace
        self.world = World(budget, grace)
        self.furthest = (0, 0)
        self.in_a_row = 0
        self.renew()
        self.is_last = False

    def renew(self) -> None:
        """Begins the model of a generation."""
        self.seen = len(self.world.generations)
        self.cause: Any = None
        self.waits_for_cause = False
        self.ill_since: float | None = None
        self.reached = (0, 0)

    @property
    def over(self) -> bool:
        return self.world.life.exit_code is not None

    @property
    def running(self) -> bool:
        return not self.over and bool(self.world.tasks.alive)

    def follow(self, cause: Any) -> None:
        """Takes an event into the model, and checks what became of the generation."""
        if self.cause is None and cause is not None:
            self.cause, self.ill_since = cause, self.world.now
        elif self.waits_for_cause and cause is not None:
            # The first to end told of an error that another task was behind: this one.
            self.cause, self.waits_for_cause = cause, False
        if self.world.tasks.alive and not self.over:
            return
        if self.cause is None:
            assert self.world.life.exit_code == 0
            return
        progress = self.reached > self.furthest
        self.furthest = max(self.furthest, self.reached)
        if progress:
            self.in_a_row = 0
        self.in_a_row += not (self.cause in (143, -15, 138, -10) and progress)
        again = self.budget > 0 and self.in_a_row <= self.budget and not self.is_last
        assert self.over == (not again)
        if self.over:
            assert self.world.life.exit_code != 0
        else:
            wait = self.world.life.deadline - self.world.now
            assert wait == min(30.0, 0.25 * 2 ** max(0, self.in_a_row - 1))

    @invariant()
    def ends_count_only_when_all_have_succeeded(self) -> None:
        *failed, last = self.world.generations
        assert not any(tasks.confirmed for tasks in failed)
        assert last.confirmed == (self.world.life.exit_code == 0)

    @precondition(lambda self: self.over)
    @rule(budget=st.integers(0, 4))
    def run_again(self, budget: int) -> None:
        self.begin_run(budget, GRACE)

    @precondition(lambda self: self.running)
    @rule(more=st.integers(1, 5))
    def train(self, more: int) -> None:
        """Goes on in the furthest `fit`, from a snapshot of it."""
        fit, step = max(self.reached, (self.furthest[0], max(0, self.furthest[1] - 2)))
        self.reached = fit, step + more
        self.world.step(step + more, fit)

    @precondition(lambda self: self.running)
    @rule()
    def begin_next_fit(self) -> None:
        self.reached = max(self.reached[0], self.furthest[0] - 1) + 1, 0
        self.world.step(0, self.reached[0])

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 2), code=st.sampled_from([0, 0, 1, 3, 143, 138, -9, -15, -10]))
    def exit(self, index: int, code: int) -> None:
        names = sorted(self.world.tasks.alive)
        self.world.exit(names[index % len(names)], code)
        self.follow(code or None)

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 2), is_consequence=st.booleans(), ends=st.booleans())
    def raises(self, index: int, is_consequence: bool, ends: bool) -> None:
        names = sorted(self.world.tasks.alive)
        name = names[index % len(names)]
        # Errors of one text, twice at the same step, would end the restarts.
        self.world.note(name, f"Error {self.world.noted}", is_consequence=is_consequence)
        if ends:
            is_first = self.cause is None
            self.world.exit(name, 1)
            if is_consequence and self.waits_for_cause:
                self.follow(None)
            else:
                self.follow(1)
                self.waits_for_cause = is_consequence and is_first

    @precondition(lambda self: self.running and self.world.life.undisturbed)
    @rule()
    def hang(self) -> None:
        names = tuple(sorted(self.world.tasks.alive))
        self.world.life.handle(Hang(names[:1], names, 11.0))
        self.follow("hang")

    @precondition(lambda self: self.running and self.cause is None)
    @rule(code=st.sampled_from([1, 143, -9]), more=st.integers(0, 3))
    def fail(self, code: int, more: int) -> None:
        """A whole generation at once, so that many of them fit into a run."""
        self.train(more)
        for name in sorted(self.world.tasks.alive):
            self.world.exit(name, code)
            self.follow(code)
        if not self.over:
            self.wait()

    @precondition(lambda self: not self.over)
    @rule(signum=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]))
    def tell(self, signum: int) -> None:
        waiting = not self.running
        self.waits_for_cause = False
        self.world.life.handle(signum)
        self.is_last = True
        if waiting:
            assert self.world.life.exit_code == 128 + signum
        else:
            self.follow(signum)

    @precondition(lambda self: not self.over and self.world.life.deadline is not None)
    @rule()
    def wait(self) -> None:
        self.waits_for_cause = False
        self.world.wait()
        if len(self.world.generations) > self.seen:
            self.renew()
        elif self.over:
            assert self.world.tasks.kills, "given up on tasks that were never killed"

    @precondition(lambda self: self.running and self.world.tasks.kills)
    @rule()
    def die_of_sigkill(self) -> None:
        for name in sorted(self.world.tasks.alive):
            self.world.exit(name, -9)
            self.follow(-9)

    @invariant()
    def only_the_last_generation_lives(self) -> None:
        if hasattr(self, "world"):
            assert not any(tasks.alive for tasks in self.world.generations[:-1])
            assert all(tasks.closed for tasks in self.world.generations[:-1])

    @invariant()
    def whoever_ends_tasks_has_a_deadline(self) -> None:
        if hasattr(self, "world") and self.running and self.cause is not None:
            assert self.world.life.deadline is not None
            assert (
                self.world.life.deadline
                <= self.ill_since + self.grace + 2 * KILL_TIMEOUT + STACK_DUMP_DELAY
            )

    def teardown(self) -> None:
        """Nothing more happens but that time passes: the run must end."""
        if not hasattr(self, "world"):
            return
        if not self.over:
            self.world.life.handle(signal.SIGTERM)
        for _ in range(3):
            if not self.over:
                self.world.wait()
        assert self.over
        assert self.world.life.deadline is None
        assert all(tasks.closed for tasks in self.world.generations)


TestLives = Lives.TestCase
TestLives.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_who_is_preempted_after_another_told_of_it_is_the_cause() -> None:
    lives = Lives()
    lives.begin_run(2, 0.5)
    lives.raises(index=0, is_consequence=True, ends=True)
    lives.train(more=1)
    lives.exit(index=0, code=143)
    lives.wait()
    lives.die_of_sigkill()
    assert lives.in_a_row == 0
