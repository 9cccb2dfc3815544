"""Whatever happens to the tasks of a run, in any order: a model of what may follow, kept apart.

The whole loop of the supervisor runs, with hang detection, restarts and their delays; the processes
and the clock are made up.
"""

import math
import signal
from collections.abc import Iterator, Mapping
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kfit.heartbeat import TaskError
from tests.state_machines import run_machine
from tests.supervisor.made_up_run import EVALUATOR, Generation, MadeUpRun, Task, Watched

GRACE, KILL_TIMEOUT = 15.0, 10.0
PREEMPTED = (128 + signal.SIGTERM, 128 + signal.SIGUSR1)
FOUND_STOPPED, FOUND_STUCK = 11.0, 61.0
"""Seconds after which a task that is stopped, or stuck in a step, must have been found."""
FOREVER = math.inf


class Runs(RuleBasedStateMachine):
    """A run under a supervisor, and what must become of it.

    Attributes:
        furthest: The furthest place of the generations that have ended: a `fit`, and a step of it.
        in_a_row: Failures in a row without progress.
        told: The first signal that told the supervisor to end the run.
        due: The least and the greatest time of the next start; None while tasks run.
        expected: The exit codes that the run may end with; None while it must not end.
    """

    @initialize(
        workers=st.integers(1, 3),
        evaluator=st.booleans(),
        budget=st.integers(0, 3),
        grace=st.sampled_from([0.5, GRACE]),
    )
    def begin(self, workers: int, evaluator: bool, budget: int, grace: float) -> None:
        self.budget, self.grace = budget, grace
        self.furthest = (0, 0)
        self.in_a_row = self.errors = 0
        self.last_error: tuple[tuple[int, int], str] = ((0, 0), "")
        self.reached: list[tuple[int, int]] = []
        self.told: int | None = None
        self.asked_at = 0.0
        self.due: tuple[float, float] | None = (1000.0, 1000.0)
        self.expected: set[int] | None = None
        self.identity: tuple[str, str] | None = None
        self.judged = 0
        self.run = MadeUpRun(workers, evaluator, self.check_start)
        self.watched = Watched(self.run, budget, grace)
        self.pass_time(0.0)

    @precondition(lambda self: self.over)
    @rule(budget=st.integers(0, 3))
    def begin_another(self, budget: int) -> None:
        self.watched.end()
        self.begin(self.run.workers, self.run.evaluator, budget, self.grace)

    # What must follow.

    @property
    def tasks(self) -> Generation:
        return self.run.tasks

    @property
    def over(self) -> bool:
        return self.watched.code is not None

    @property
    def running(self) -> bool:
        return not self.over and bool(self.tasks.running)

    @property
    def healthy(self) -> bool:
        """Whether all tasks run that the others need, and all train."""
        return self.running and self.tasks.blame is None and not self.tasks.ill

    def check_start(self, number: int, environ: Mapping[str, str]) -> None:
        """Called when the supervisor starts the tasks."""
        self.judge()
        assert number == len(self.run.generations)
        assert not [task for each in self.run.generations for task in each.running]
        assert all(each.is_closed for each in self.run.generations)
        assert self.told is None, "started again though it was told to stop"
        assert self.expected is None, "started again though it had to end"
        assert self.due is not None
        said = self.watched.said.getvalue()
        is_due = self.due[0] - 1e-6 <= self.run.now <= self.due[1] + 1e-6
        assert is_due, f"started at {self.run.now}, not at {self.due}:\n{said}"
        self.due = None
        assert environ["KFIT_GENERATION"] == str(number)
        assert environ["KFIT_REACHED"] == ",".join(f"{fit}:{step}" for fit, step in self.reached)
        self.identity = self.identity or (environ["KFIT_RUN"], environ["KFIT_SEED"])
        assert self.identity == (environ["KFIT_RUN"], environ["KFIT_SEED"])
        if self.run.is_gone:
            self.expected = {127}

    def judge(self) -> None:
        """Takes the end of a generation into the model, as soon as all its tasks have ended."""
        if self.judged == len(self.run.generations) or self.tasks.running:
            return
        self.judged += 1
        blame = self.tasks.blame
        codes = {task.code for task in self.tasks.tasks.values()}
        if blame is None:
            evaluator = self.tasks.tasks.get(EVALUATOR)
            lost = 0 if evaluator is None or evaluator.code is None else evaluator.code
            self.expected = {128 - lost if lost < 0 else lost}
            return
        if not blame.names:  # the supervisor was told to stop, and nothing had happened before
            failed = {128 - code if code < 0 else code for code in codes if code}
            self.expected = failed | {blame.code}
            return
        reached = self.tasks.furthest
        progress = reached > self.furthest
        self.furthest = max(self.furthest, reached)
        self.reached.append(reached)
        if progress:
            self.in_a_row = 0
        self.in_a_row += not (blame.code in PREEMPTED and progress)
        again = bool(blame.error) and self.last_error == (reached, blame.error) and not progress
        self.last_error = (reached, blame.error)
        if self.budget == 0 or again or self.in_a_row > self.budget or self.told is not None:
            self.expected = {blame.code}
            return
        delay = min(30.0, 0.25 * 2 ** max(0, self.in_a_row - 1))
        self.due = (self.tasks.ended + delay, self.tasks.ended + 1.25 * delay)

    def pass_time(self, seconds: float) -> None:
        self.watched.wait(seconds)
        self.judge()

    # What happens.

    def chosen(self, index: int) -> Task:
        return self.tasks.running[index % len(self.tasks.running)]

    @precondition(lambda self: not self.over)
    @rule(seconds=st.sampled_from([0.3, 2.0, 5.0, 12.0, 62.0]))
    def wait(self, seconds: float) -> None:
        self.pass_time(seconds)

    @precondition(lambda self: self.running)
    @rule(
        index=st.integers(0, 3),
        code=st.sampled_from([0, 1, 3, 143, 138, -9, -11, -15, -10]),
    )
    def end(self, index: int, code: int) -> None:
        """One task ends."""
        if self.tasks.ill:
            self.pass_time(2.5)  # until a task that is stopped is known to be
        if self.running:
            task = self.chosen(index)
            task.error = None
            task.end_at(self.run.now, code)
            self.pass_time(0.0)

    @precondition(lambda self: self.healthy)
    @rule(gap=st.sampled_from([0.0, 1.0, 3.0]))
    def end_well(self, gap: float) -> None:
        for index, task in enumerate(self.tasks.running):
            task.end_at(self.run.now + gap * index, 0)
        self.pass_time(3 * gap)

    @precondition(lambda self: self.healthy)
    @rule(
        code=st.sampled_from([1, 143, -9]),
        steps=st.integers(0, 3),
        lag=st.integers(0, 3),
        repeats=st.integers(0, 1),
    )
    def fail(self, code: int, steps: int, lag: int, repeats: int) -> None:
        """All tasks fail together, and are started again, so that many generations come to pass."""
        self.run.lag, self.run.repeats = lag, repeats
        self.pass_time(0.5 * steps)
        for task in self.tasks.running:
            task.error = None
            task.end_at(self.run.now, code)
        self.pass_time(0.0)
        self.pass_time(40.0)

    @precondition(lambda self: self.healthy)
    @rule(
        index=st.integers(0, 3),
        order=st.permutations([0, 1, 2, 3]),
        text=st.sampled_from(["ValueError: x", "ValueError: y"]),
        gap=st.sampled_from([0.0, 0.1, 0.4]),
        is_late=st.booleans(),
    )
    def raise_error(
        self, index: int, order: list[int], text: str, gap: float, is_late: bool
    ) -> None:
        """A worker raises an error; the others lose it, and may end before it even tells of it."""
        workers = [task for task in self.tasks.running if task.name != EVALUATOR]
        if not workers:
            return
        culprit = workers[index % len(workers)]
        for task, turn in zip(workers, order, strict=False):
            self.errors += 1
            task.end_at(self.run.now + 0.01 + min(gap, self.grace / 4) * turn, 1)
            summary = text if task is culprit else "ExchangeError: gone"
            error = TaskError(float(self.errors), summary, task is not culprit)
            if is_late and task is culprit:
                task.last_words = error
            else:
                task.error = error
        self.tasks.accuse([culprit.name], 1, text)
        self.pass_time(2.0)

    @precondition(lambda self: self.healthy)
    @rule(codes=st.lists(st.sampled_from([1, 143, -9]), min_size=1, max_size=5))
    def crash_again_and_again(self, codes: list[int]) -> None:
        """Generations end before they take a step."""
        self.run.crashes = codes[1:]
        for task in self.tasks.running:
            task.end_at(self.run.now, codes[0])
        self.pass_time(60.0)
        self.run.crashes = []

    @precondition(lambda self: self.healthy and len(self.tasks.running) > 1)
    @rule(index=st.integers(0, 3), code=st.sampled_from([3, 143, -9]))
    def end_beside_one_that_is_stopped(self, index: int, code: int) -> None:
        self.hang(index, True)
        self.end(index + 1, code)

    @precondition(lambda self: self.healthy and len(self.tasks.running) > 1)
    @rule(index=st.integers(0, 3), lives_on=st.sampled_from([5.0, 9.0, 11.0, FOREVER]))
    def end_beside_one_that_cannot_be_killed(self, index: int, lives_on: float) -> None:
        self.set(index, "nothing", lives_on)
        self.end(index + 1, 1)
        self.pass_time(self.grace + KILL_TIMEOUT)

    @precondition(lambda self: self.healthy)
    @rule(lag=st.integers(0, 3))
    def meet_a_bug(self, lag: int) -> None:
        """Worker 0 raises an error after the next step, and again each time that it comes there."""
        fit, step = max((task.pulse.fit, task.pulse.step) for task in self.tasks.running)
        self.run.lag, self.run.repeats, self.run.bug = lag, 0, (fit, step + 1)
        self.pass_time(5.0)

    @precondition(lambda self: self.healthy)
    @rule()
    def begin_next_fit(self) -> None:
        """All tasks have ended their `fit`, and begin another one."""
        for task in self.tasks.running:
            pulse = task.pulse
            task.pulse = replace(pulse, fit=pulse.fit + 1, step=0, time=self.run.now)

    @precondition(lambda self: self.running and self.tasks.blame is None)
    @rule(index=st.integers(0, 3), is_stopped=st.booleans())
    def hang(self, index: int, is_stopped: bool) -> None:
        task = self.chosen(index)
        if task.ill_since is None:
            task.ill_since, task.is_stopped = self.run.now, is_stopped

    @precondition(lambda self: self.running and self.tasks.ill)
    @rule(index=st.integers(0, 3))
    def come_back(self, index: int) -> None:
        """What was given up, or nearly, goes on: it must not be taken for a task of the next."""
        task = self.tasks.ill[index % len(self.tasks.ill)]
        assert task.ill_since is not None
        self.tasks.slow_steps.append(self.run.now - task.ill_since)
        task.go_on(self.run.now)

    @precondition(lambda self: self.running)
    @rule(
        index=st.integers(0, 3),
        replies=st.sampled_from(["saves", "dies", "ends well", "nothing"]),
        lives_on=st.sampled_from([0.0, 0.0, 5.0, 9.0, 11.0, FOREVER]),
    )
    def set(self, index: int, replies: str, lives_on: float) -> None:
        """How a task will end when it is told to."""
        task = self.chosen(index)
        task.replies, task.lives_on = replies, lives_on

    @precondition(lambda self: not self.over)
    @rule(signum=st.sampled_from([signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]))
    def tell(self, signum: int) -> None:
        self.asked_at = self.run.now
        if self.told is None:
            self.told = signum
            if not self.tasks.running:
                self.expected, self.due = {128 + signum}, None
        if self.tasks.running:
            self.tasks.accuse([], 128 + signum)
        self.watched.tell(signum)
        self.pass_time(0.0)

    @precondition(lambda self: not self.over and self.due is not None)
    @rule()
    def uninstall(self) -> None:
        self.run.is_gone = True

    @precondition(lambda self: not self.over)
    @rule(seconds=st.sampled_from([100.0, 4000.0]))
    def suspend_host(self, seconds: float) -> None:
        """Neither the supervisor nor the tasks run meanwhile."""
        self.run.now += seconds
        for task in self.tasks.running:
            if task.ill_since is not None:
                task.ill_since = self.run.now
        if self.due is not None:
            self.due = (self.due[0], math.inf)
        self.asked_at = self.run.now
        if self.tasks.blame is not None:
            self.tasks.blame.since = self.run.now
        self.pass_time(0.0)

    # What holds after each rule.

    @property
    def has_begun(self) -> bool:
        return hasattr(self, "watched")

    @invariant()
    def the_code_says_how_it_ended(self) -> None:
        if not self.has_begun or not self.over:
            return
        code = self.watched.code
        survivors = [task.killed for task in self.tasks.running]
        if survivors:
            last = self.run.now - KILL_TIMEOUT + 1e-6
            assert all(killed is not None and killed < last for killed in survivors)
            assert self.tasks.blame is not None
            assert code != 0
        else:
            assert self.expected is not None, "ended though it had to go on"
            said = self.watched.said.getvalue()
            assert code in self.expected, f"{code}, not {self.expected}:\n{said}"
        if code == 0:
            assert self.told is None
            assert all(task.code == 0 for task in self.tasks.tasks.values())
        assert self.watched.supervisor.stopped_by == self.told

    @invariant()
    def it_ends_when_it_must(self) -> None:
        if self.has_begun and self.expected is not None and not self.tasks.running:
            assert self.over

    @invariant()
    def the_first_cause_is_named(self) -> None:
        if not self.has_begun:
            return
        failures = self.watched.supervisor.failures
        if not self.over or not failures or self.told is not None or self.run.is_gone:
            return
        for failure in failures:
            blame = self.run.generations[failure.generation].blame
            names = blame.names if blame is not None else {EVALUATOR}
            assert failure.task in names, f"{failure.cause}, not one of {names}"

    @invariant()
    def only_the_last_generation_lives(self) -> None:
        if self.has_begun:
            assert not [task for each in self.run.generations[:-1] for task in each.running]

    def found_stuck(self, task: Task) -> float:
        """Returns the seconds after which a task that is stuck in a step must have been found.

        If the steps usually take long, one more may take five times as long.
        """
        slow = self.tasks.slow_steps
        if 4 * len(slow) < task.pulse.beats:
            return FOUND_STUCK
        return max([FOUND_STUCK, *(5 * seconds for seconds in slow)])

    @invariant()
    def a_hang_is_found(self) -> None:
        if not self.has_begun or not self.running or self.tasks.blame is not None:
            return
        for task in self.tasks.ill:
            assert task.ill_since is not None
            most = FOUND_STOPPED if task.is_stopped else self.found_stuck(task)
            assert self.run.now - task.ill_since <= most, f"{task.name} hangs"

    @invariant()
    def tasks_that_must_end_do_so(self) -> None:
        if self.has_begun and self.running and self.tasks.blame is not None:
            since = max(self.tasks.blame.since, self.asked_at)
            assert self.run.now - since <= max(self.grace, 5.0) + KILL_TIMEOUT + 1.5

    def teardown(self) -> None:
        """Nothing more happens but that time passes: the run must end."""
        if not self.has_begun:
            return
        try:
            if not self.over:
                self.tell(signal.SIGTERM)
                self.pass_time(self.grace + 2 * KILL_TIMEOUT + 5.0)
            assert self.over
            self.the_code_says_how_it_ended()
        finally:
            self.watched.end()


@pytest.mark.parametrize(
    ("examples", "steps"),
    [
        pytest.param(30, 40, id="few"),
        pytest.param(3000, 60, id="many", marks=pytest.mark.long),
    ],
)
def test_whatever_happens_the_run_ends_as_it_must(examples: int, steps: int) -> None:
    run_machine(Runs, examples, steps)


@pytest.fixture
def runs() -> Iterator[Runs]:
    """Two workers and an evaluator, which have trained for a while."""
    runs = Runs()
    runs.begin(workers=2, evaluator=True, budget=0, grace=GRACE)
    runs.wait(seconds=5.0)
    yield runs
    runs.teardown()


def test_an_evaluator_that_fails_does_not_end_a_worker_that_is_stopped(runs: Runs) -> None:
    runs.hang(index=0, is_stopped=True)
    runs.wait(seconds=2.0)
    runs.end(index=2, code=3)
    assert [task.name for task in runs.tasks.running] == ["worker 0", "worker 1"]
    runs.come_back(index=0)
    runs.end_well(gap=0.0)
    assert runs.watched.code == 3


def test_a_task_that_was_stopped_twice_hangs_no_longer_than_the_second_time(runs: Runs) -> None:
    """It went on for a moment, which no look at the processes can see; its heartbeat tells."""
    for _ in range(2):
        runs.hang(index=2, is_stopped=True)
        runs.wait(seconds=8.0)
        runs.come_back(index=2)
        runs.hang(index=2, is_stopped=True)
        runs.wait(seconds=3.0)
        assert not runs.over
        runs.come_back(index=2)
        runs.wait(seconds=2.0)
    runs.end_well(gap=0.0)
    assert runs.watched.code == 0


def test_an_evaluator_that_was_stopped_and_has_ended_is_not_blamed(runs: Runs) -> None:
    runs.hang(index=2, is_stopped=True)
    runs.wait(seconds=2.0)
    runs.end(index=2, code=-9)
    runs.wait(seconds=5.0)
    runs.end(index=0, code=3)
    assert runs.tasks.blame is not None
    assert runs.tasks.blame.names == {"worker 0"}
    runs.wait(seconds=2.0)
    assert runs.watched.code == 3
    runs.the_first_cause_is_named()


@pytest.mark.parametrize("index", [1, 2], ids=["worker", "evaluator"])
def test_an_error_of_its_own_is_named_beside_a_task_that_is_stopped(runs: Runs, index: int) -> None:
    runs.hang(index=index, is_stopped=True)
    runs.wait(seconds=2.0)
    worker = runs.tasks.tasks["worker 0"]
    worker.error = TaskError(1.0, "ValueError: x", False)
    worker.end_at(runs.run.now, 1)
    runs.wait(seconds=5.0)
    assert runs.tasks.blame is not None
    assert runs.tasks.blame.names == {"worker 0"}
    assert runs.watched.code == 1
    runs.the_first_cause_is_named()


def test_a_worker_that_fails_beside_an_evaluator_that_is_stopped_is_named(runs: Runs) -> None:
    runs.end_beside_one_that_is_stopped(index=2, code=3)
    runs.wait(seconds=5.0)
    assert runs.watched.code == 3
    runs.the_first_cause_is_named()


def test_a_task_that_is_stuck_is_found_though_the_host_was_often_suspended() -> None:
    """The time in which nothing ran is not the usual time of a step."""
    runs = Runs()
    runs.begin(workers=1, evaluator=False, budget=0, grace=GRACE)
    for _ in range(4):
        runs.hang(index=0, is_stopped=False)
        runs.suspend_host(seconds=100.0)
        runs.wait(seconds=0.3)
        runs.come_back(index=0)
        runs.wait(seconds=0.3)
    runs.hang(index=0, is_stopped=False)
    runs.wait(seconds=62.0)
    runs.a_hang_is_found()
    assert runs.tasks.blame is not None
    runs.teardown()


def test_a_task_that_is_stuck_is_judged_from_its_last_step_on() -> None:
    """The end of another task is an event, after which the supervisor looks at other moments."""
    runs = Runs()
    runs.begin(workers=1, evaluator=True, budget=0, grace=GRACE)
    runs.wait(seconds=2.0)
    runs.wait(seconds=0.3)
    runs.wait(seconds=0.3)
    runs.wait(seconds=0.3)
    runs.hang(index=0, is_stopped=False)
    last_step = runs.tasks.tasks["worker 0"].pulse.time
    runs.wait(seconds=0.3)
    runs.end(index=1, code=0)
    runs.wait(seconds=last_step + 9.0 - runs.run.now)
    assert runs.tasks.blame is None
    runs.wait(seconds=0.6)
    assert runs.tasks.blame is not None
    runs.teardown()


def test_a_step_may_take_long_where_all_have_taken_long() -> None:
    runs = Runs()
    runs.begin(workers=1, evaluator=False, budget=0, grace=GRACE)
    for _ in range(5):
        runs.hang(index=0, is_stopped=False)
        for _ in range(4):
            runs.wait(seconds=12.0)
        runs.come_back(index=0)
    runs.hang(index=0, is_stopped=False)
    for _ in range(3):
        runs.wait(seconds=62.0)
        runs.a_hang_is_found()
    assert runs.tasks.blame is None
    runs.wait(seconds=62.0)
    assert runs.tasks.blame is not None
    runs.teardown()
