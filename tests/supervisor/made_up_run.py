"""A run whose processes and clock are made up: the supervisor's loop runs, and nobody waits."""

import io
import math
import signal
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from kfit.heartbeat import Phase, Pulse, Reached, TaskError
from kfit.supervisor.backend import Backend
from kfit.supervisor.events import Events
from kfit.supervisor.output import Output
from kfit.supervisor.process_group import TaskExit, TaskStartError
from kfit.supervisor.supervisor import Supervisor

EVALUATOR = "evaluator 0"
AT_LEAST = 8.9
"""Seconds without progress before which no task may be taken for hung."""
_LONGEST_STEP = 0.5
"""The most seconds between two steps of a task that trains: the interval of the supervisor's looks.

A task that gets stuck may have taken its last step so long before.
"""
_SOON = 60.0


@dataclass
class Task:
    """A process that is made up: it trains, unless something is the matter with it.

    Attributes:
        replies: What it does when it is asked to stop: "saves", "dies", "ends well" or "nothing".
        lives_on: Seconds from SIGKILL until it is gone; a process may wait for a broken disk.
        ill_since: When it was stopped by a signal, or got stuck in a step; None if it trains.
        is_stopped: Whether a signal has stopped it.
        ends: When it ends, and with which code.
        killed: When it was killed first.
        last_words: The error that it records when it ends with the code 1.
        asked: A signal that it has not answered yet, since it is stopped.
        code: The code that it has ended with.
    """

    name: str
    pulse: Pulse
    replies: str = "saves"
    lives_on: float = 0.0
    ill_since: float | None = None
    is_stopped: bool = False
    ends: tuple[float, int] | None = None
    killed: float | None = None
    asked: int | None = None
    error: TaskError | None = None
    last_words: TaskError | None = None
    code: int | None = None

    def end_at(self, moment: float, code: int) -> None:
        if self.ends is None or moment < self.ends[0]:
            self.ends = (moment, code)

    def answer(self, signum: int, now: float) -> None:
        if self.is_stopped:
            self.asked = signum
        elif self.ill_since is None and self.replies != "nothing":
            codes = {"saves": 128 + signum, "dies": -signum, "ends well": 0}
            self.end_at(now + 0.3, codes[self.replies])

    def go_on(self, now: float) -> None:
        """It was stopped or stuck, and trains again."""
        self.ill_since, self.is_stopped = None, False
        self.pulse = replace(self.pulse, beats=self.pulse.beats + 1, time=now)
        if self.asked is not None:
            self.answer(self.asked, now)


@dataclass
class Blame:
    """What must be reported as the end of a generation.

    Attributes:
        names: One of these tasks must be named.
        code: The exit code.
        error: The error that the task has raised by itself; empty if it has ended otherwise.
        since: When the tasks began to end.
    """

    names: set[str]
    code: int
    error: str
    since: float


class Generation:
    """The tasks of one attempt, which do what `kfit.supervisor.process_group.Generation` does.

    Attributes:
        blame: Why the tasks must end; None if all is well.
        ended: When the last task has ended.
        slow_steps: The seconds after which a task that was stopped or stuck has gone on.
    """

    def __init__(self, run: "MadeUpRun", tasks: Sequence[Task]) -> None:
        self._run = run
        self.tasks = {task.name: task for task in tasks}
        self.blame: Blame | None = None
        self.ended = 0.0
        self.slow_steps: list[float] = []
        self.is_closed = False
        self.names = list(self.tasks)
        self.dispensable = [name for name in self.names if name == EVALUATOR]
        self.servers: list[str] = []

    @property
    def running(self) -> list[Task]:
        return [task for task in self.tasks.values() if task.code is None]

    @property
    def ill(self) -> list[Task]:
        """The tasks that are stopped or stuck."""
        return [task for task in self.running if task.ill_since is not None]

    @property
    def furthest(self) -> tuple[int, int]:
        """The furthest place of all tasks: a `fit`, and a step of it."""
        return max((task.pulse.fit, task.pulse.step) for task in self.tasks.values())

    def accuse(self, names: Sequence[str], code: int, error: str = "") -> None:
        """Notes why the tasks must end, unless they must end already."""
        if self.blame is None:
            self.blame = Blame(set(names), code, error, self._run.now)

    def signal(self, signum: int, names: Collection[str] | None = None) -> None:
        assert self.blame is not None, "healthy tasks were asked to stop"
        for task in self.running:
            if names is None or task.name in names:
                task.answer(signum, self._run.now)

    def kill(self) -> None:
        self._check_hang()
        for task in self.running:
            task.killed = self._run.now if task.killed is None else task.killed
            if task.lives_on < math.inf:
                task.end_at(self._run.now + task.lives_on, -signal.SIGKILL)

    def dump_stacks(self, names: Sequence[str]) -> None:
        self._check_hang()
        assert not [name for name in names if self.tasks[name].is_stopped]

    def _check_hang(self) -> None:
        """Where nothing else is the matter, a hang was found; then a task must hang."""
        if self.blame is None:
            now = self._run.now
            quiet = [
                now - task.ill_since + (0.0 if task.is_stopped else _LONGEST_STEP)
                for task in self.ill
                if task.ill_since is not None
            ]
            assert max(quiet, default=0.0) > AT_LEAST, "healthy tasks were taken for hung"
            self.accuse([task.name for task in self.ill], 128 + signal.SIGKILL)

    def pulses(self) -> dict[str, Pulse]:
        return {task.name: task.pulse for task in self.running}

    def stopped(self) -> list[str]:
        return [task.name for task in self.running if task.is_stopped]

    def drain(self) -> None:
        assert not self.is_closed

    def close(self) -> None:
        assert not self.is_closed
        self.is_closed = True

    def error(self, name: str) -> TaskError | None:
        return self.tasks[name].error

    def tail(self, name: str) -> list[str]:
        return []

    def stop_note(self, name: str) -> str:
        return ""

    def confirm_ends(self) -> None:
        assert not self.is_closed
        assert not self.running

    def reached(self, name: str) -> Reached:
        return self.tasks[name].pulse.reached


@dataclass
class MadeUpRun(Backend):
    """The tasks of a run, its time, and what the supervisor is told.

    Attributes:
        check_start: A function that is called before each start with the environment of a task.
        is_gone: Whether the program cannot be started any more.
        crashes: The codes with which the tasks of the next generations end before any step.
        bug: The place, a `fit` and a step of it, after which the first worker raises an error,
            whenever it comes there.
        lag: How many steps before the furthest one of its `fit` the next generation resumes.
        repeats: How many `fit`s before the furthest one the next generation resumes.
        generations: The generations so far.
    """

    workers: int
    evaluator: bool
    check_start: Callable[[int, Mapping[str, str]], None]
    now: float = 1000.0
    is_gone: bool = False
    crashes: list[int] = field(default_factory=list)
    bug: tuple[int, int] | None = None
    lag: int = 0
    repeats: int = 0
    generations: list[Generation] = field(default_factory=list)
    on_exit: Callable[[TaskExit], None] = field(default=lambda exit: None)

    @contextmanager
    def opened(self, output: Output, on_exit: Callable[[TaskExit], None]) -> Iterator[Any]:
        self.on_exit = on_exit
        yield self._start

    def _start(
        self, number: int, identified: Callable[[Mapping[str, str]], dict[str, str]]
    ) -> Generation:
        self.check_start(number, identified({}))
        if self.is_gone:
            raise TaskStartError("worker 0 could not be started")
        fit, step = max((each.furthest for each in self.generations), default=(0, 0))
        pulse = Pulse(
            fit=max(0, fit - self.repeats),
            step=max(0, step - self.lag),
            time=self.now,
            in_call=True,
            phase=Phase.STEP,
            workers=self.workers,
            marks_meetings=True,
        )
        names = [f"worker {index}" for index in range(self.workers)]
        tasks = [Task(name, replace(pulse, pid=index + 1)) for index, name in enumerate(names)]
        if self.evaluator:
            tasks.append(Task(EVALUATOR, replace(pulse, pid=self.workers + 1, workers=1)))
        if self.crashes:
            code = self.crashes.pop()
            for task in tasks:
                task.end_at(self.now, code)
        self.generations.append(Generation(self, tasks))
        return self.generations[-1]

    @property
    def tasks(self) -> Generation:
        return self.generations[-1]

    @property
    def next_end(self) -> float:
        ends = [t.ends[0] for each in self.generations for t in each.running if t.ends is not None]
        return min(ends, default=math.inf)

    def pass_time(self, until: float) -> None:
        """Comes to a moment, at the latest the next end of a task; the healthy ones train."""
        self.now = max(self.now, min(until, self.next_end))
        for generation in self.generations:
            for task in generation.running:
                if task.ends is not None and task.ends[0] <= self.now:
                    self._end(generation, task, task.ends[1])
            self._train(generation)

    def _end(self, generation: Generation, task: Task, code: int) -> None:
        task.code = code
        if code == 1:
            task.error = task.last_words or task.error
        generation.ended = self.now
        if code != 0 and task.name != EVALUATOR:
            ill = [each for each in generation.ill if each.name != EVALUATOR]
            stopped = [each.name for each in ill if each.is_stopped]
            is_own = code > 0 and task.error is not None and not task.error.is_consequence
            if stopped and not is_own:  # they do not answer the others, which fail
                generation.accuse(stopped, 128 + signal.SIGKILL)
            error = task.error.summary if task.error and code > 0 else ""
            generation.accuse([task.name], code if code > 0 else 128 - code, error)
        self.on_exit(TaskExit(task.name, code))

    def _train(self, generation: Generation) -> None:
        failed = [t for t in generation.tasks.values() if t.code and t.name != EVALUATOR]
        missed = [t for t in (*generation.ill, *failed) if t.name != EVALUATOR]
        for task in generation.running:
            pulse = task.pulse
            if task.ill_since is not None:
                continue
            if missed and task.name != EVALUATOR:
                task.pulse = replace(pulse, meeting_since=pulse.meeting_since or self.now)
            else:
                beat = {"beats": pulse.beats + 1, "step": pulse.step + 1, "time": self.now}
                task.pulse = replace(pulse, meeting_since=None, **beat)
                if (pulse.fit, pulse.step + 1) == self.bug and task.name == "worker 0":
                    task.error = TaskError(self.now, "ValueError: the same", False)
                    task.end_at(self.now, 1)


class _EndedError(BaseException):
    """Ends the supervisor's thread where it waits."""


class _MadeUpEvents(Events):
    """The events and the time of a run; whoever waits for one gives the turn back to the test."""

    def __init__(self, run: MadeUpRun) -> None:
        self._run = run
        self._happened: deque[TaskExit | int] = deque()
        self._turns = threading.Semaphore(0), threading.Semaphore(0)
        self._until = run.now
        self.is_over = False

    def now(self) -> float:
        return self._run.now

    def put(self, event: TaskExit | int) -> None:
        self._happened.append(event)

    def get(self, seconds: float) -> TaskExit | int | None:
        target = self._run.now + seconds
        while not self._happened:
            if min(target, self._run.next_end) > self._until:
                self._run.now = max(self._run.now, self._until)
                self.give_back()
                self.take_turn()
                continue
            self._run.pass_time(target)
            if self._run.now >= target and not self._happened:
                return None
        return self._happened.popleft()

    def take_turn(self) -> None:
        """Called in the thread of the supervisor: waits until the test lets time pass."""
        self._turns[0].acquire()
        if self.is_over:
            raise _EndedError

    def give_back(self) -> None:
        """Called in the thread of the supervisor."""
        self._turns[1].release()

    def let_pass(self, until: float) -> None:
        """Called in the thread of the test: lets the supervisor run until a moment."""
        self._until = until
        self._turns[0].release()
        assert self._turns[1].acquire(timeout=_SOON), "the supervisor does not come back"


class Watched:
    """A supervisor in a thread of its own, which runs only while time passes.

    Attributes:
        code: What `Supervisor.run` has returned; None while it runs.
    """

    def __init__(self, run: MadeUpRun, budget: int, grace: float) -> None:
        self.code: int | None = None
        self.said = io.StringIO()
        self._run = run
        self._events = _MadeUpEvents(run)
        self._failure: BaseException | None = None
        self._is_ended = False
        self.supervisor = Supervisor(
            run,
            grace=grace,
            max_restarts=budget,
            stdout=io.StringIO(),
            stderr=self.said,
            events=self._events,
        )
        self._thread = threading.Thread(target=self._supervise, daemon=True)
        self._thread.start()

    def _supervise(self) -> None:
        try:
            self._events.take_turn()
            self.code = self.supervisor.run()
        except BaseException as error:
            self._failure = error
        self._is_ended = True
        self._events.give_back()

    def wait(self, seconds: float) -> None:
        """Lets the time pass; raises what the supervisor has raised."""
        until = self._run.now + seconds
        if not self._is_ended:
            self._events.let_pass(until)
        if self._failure is not None:
            raise self._failure
        self._run.now = until

    def tell(self, signum: int) -> None:
        """The supervisor gets a signal."""
        self._events.put(signum)

    def end(self) -> None:
        """Ends the thread, however far the run has come."""
        self._events.is_over = True
        if not self._is_ended:
            self._events.let_pass(self._run.now)
        self._thread.join(_SOON)
