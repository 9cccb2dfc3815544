"""Starts, watches, restarts and stops the tasks of a cluster.

The supervisor does what has effects: it has tasks started, handles signals, reads the tasks'
reports of progress, and waits for events in one queue. `SupervisorPolicy` decides what follows from
an event, by the rules in `restarts` and `hang_detection`. A `Backend` starts the processes, on this
host by default.

A run may need several attempts; the tasks of one attempt are called a generation. They start and
end together, and a restart is the next generation.
"""

from __future__ import annotations

import random
import signal
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TextIO

from kfit.argument_checks import check_seconds
from kfit.heartbeat.errors import RESTARTS
from kfit.heartbeat.reached import Reached
from kfit.supervisor.activity import activity
from kfit.supervisor.backend import Backend, LocalBackend, Plan, Start, WatchedTasks
from kfit.supervisor.events import Events
from kfit.supervisor.hang_detection import Hang, Hangs, Limits
from kfit.supervisor.output import Output
from kfit.supervisor.policy import Event, SupervisorPolicy
from kfit.supervisor.process_group import TaskCommand, TaskExit
from kfit.supervisor.restarts import REACHED, Restarts, told
from kfit.supervisor.run_report import Failure
from kfit.supervisor.signals import signal_name, signals_to

__all__ = ["DEFAULT_GRACE", "HangTimeout", "Plan", "Supervisor", "TaskCommand"]

DEFAULT_GRACE = 15.0
"""Seconds from SIGTERM to SIGKILL, in which tasks can save their state.

This is half of the time that Kubernetes and Slurm give.
"""

HangTimeout = float | Literal["auto"] | None
"""Seconds without progress after which a task counts as hung.

"auto" stands for limits that depend on what the task is doing (`Limits`), and None for no limit.
"""

# Seconds between two checks of the heartbeats. A signal is noticed within this time, too.
_LOOK_INTERVAL = 0.5
# Seconds for which a run that has ended waits for somebody to read its last output, as after Ctrl-S
# or in `less`; and if a signal has ended it, since whoever has sent it may soon kill this process.
_AWAIT_READER, _AWAIT_READER_AFTER_SIGNAL = 600.0, 5.0


class Supervisor:
    """A supervisor, which runs the tasks (processes) of a cluster, and restarts them if they fail.

    A run ends when all tasks have succeeded, or no restart is left. Every task runs in a session
    and process group of its own. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to the tasks,
    and end the run; a second Ctrl-C kills the tasks. All this holds, too, while nobody reads the
    output. A signal that this process was started to ignore (`nohup`) stays ignored. No task
    outlives the supervisor, not even if the supervisor is killed.

    When a task fails, hangs or is preempted, all tasks are ended, and started again if a restart is
    left. But if a task fails that the others can do without (`TaskCommand.dispensable`), the others
    continue. The tasks of one attempt are called a generation. A task gets these environment
    variables in addition to those of its command:

    - KFIT_RUN, an identifier of the run;
    - KFIT_GENERATION, the number of the generation, from 0;
    - KFIT_REACHED, the last step of each earlier generation, after the number of its `fit` in the
      program, such as "0:100,1:3";
    - KFIT_RESTARTS, `max_restarts`;
    - KFIT_SEED, a random number, unless the command sets it;
    - KFIT_HEARTBEAT, the path of the file in which the task reports its progress (see
      `kfit.heartbeat`);
    - KFIT_TERMINAL_WIDTH, how many columns a line of the task may have; 0 if no terminal shows it.
      A task whose output is passed on without a prefix does not get it;
    - COLUMNS, how many columns of a terminal the prefix leaves to a line, if a terminal shows it.

    KFIT_RUN and KFIT_SEED are the same in all generations.

    Args:
        plan: A function that returns the commands to run on this host, called for each generation;
            or the `Backend` that starts tasks elsewhere.
        grace: Seconds that tasks have to stop before they are killed. After a task has failed, the
            others have at most 3 seconds.
        max_restarts: Maximum number of restarts in a row; 0 never restarts. The count starts again
            at 0 when the tasks take a step beyond the furthest step of all earlier generations, or
            begin a later `fit` of the program.
        hang_timeout: Seconds without progress after which a task in `fit`, `evaluate` or `predict`
            counts as hung. "auto" means `limits`; None turns hang detection off.
        limits: The limits for `"auto"`; None for the default ones.
        hang_option: The name of the option by which the user sets `hang_timeout`, for messages.
        prefix: Whether to print each task's name before its lines. If not, the output of the tasks
            is passed on as it is, nothing is shown live, and the tasks have the stdin of this
            process.
        explain: Whether to print at the end why no other generation follows. If not, the caller can
            read `failures`.
        announce_stop: Whether to print that a signal stops the run. Another supervisor that stops
            this one prints it by itself.
        stdout: The stream to which the tasks' standard output is written; `sys.stdout` by default.
            If a process has no such stream, nothing is written.
        stderr: The stream to which the tasks' standard error and the final report are written;
            `sys.stderr` by default.
        events: The events that the supervisor waits for, and its clock; tests replace them.

    Attributes:
        failures: For each generation that failed, what ended it; set by `run`.
        stopped_by: The signal that told this process to end the run; None if there was none.

    Raises:
        ValueError: If `max_restarts` is below 0, or `hang_timeout` is not a positive number.
    """

    def __init__(
        self,
        plan: Plan | Backend,
        *,
        grace: float = DEFAULT_GRACE,
        max_restarts: int = 0,
        hang_timeout: HangTimeout = "auto",
        limits: Limits | None = None,
        hang_option: str = "`--hang-timeout`",
        prefix: bool = True,
        explain: bool = True,
        announce_stop: bool = True,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        events: Events | None = None,
    ) -> None:
        if max_restarts < 0:
            raise ValueError(f"`max_restarts` is {max_restarts}; expected a number from 0 up")
        if hang_timeout is not None and hang_timeout != "auto":
            others = ", 'auto', or None for no limit"
            check_seconds("hang_timeout", hang_timeout, above_zero=True, others=others)
        self._backend = plan if isinstance(plan, Backend) else LocalBackend(plan, prefix=prefix)
        self._grace = grace
        self._max_restarts = max_restarts
        self._hang_timeout = hang_timeout
        self._limits = limits
        self._hang_option = hang_option
        self._explain = explain
        self._announce_stop = announce_stop
        self._output = Output(stdout or sys.stdout, stderr or sys.stderr, is_live=prefix)
        self._events = events or Events()
        self._generation: WatchedTasks | None = None
        self._started_at = 0.0
        self._hangs: Hangs | None = None
        self.failures: list[Failure] = []
        self.stopped_by: int | None = None

    def run(self) -> int:
        """Runs the tasks, again and again if necessary, until they succeed or the run must end.

        Returns:
            0 if all tasks succeeded. Otherwise the exit code of the first failure in the last
            attempt: 128 + the signal's number for a task that was killed, 137 for a task that hung,
            127 if a program could not be started. If a signal has ended the run and no task failed,
            the code is 128 + the signal's number.
        """
        self._output.begin()
        try:
            return self._run()
        finally:
            self._finish_output()

    def _run(self) -> int:
        with (
            self._backend.opened(self._output, self._events.put) as start,
            signals_to(self._events.put),
        ):
            restarts = Restarts(self._max_restarts)
            identity = _Identity.drawn(self._max_restarts)
            policy = SupervisorPolicy(
                lambda number: self._start(start, number, identity, restarts.reached),
                restarts=restarts,
                grace=self._grace,
                say=self._output.say,
                explain=self._explain,
                announce_stop=self._announce_stop,
                clock=self._events.now,
            )
            try:
                policy.begin()
                while policy.exit_code is None:
                    policy.handle(self._next_event(policy))
            finally:
                policy.abandon()
                self.failures, self.stopped_by = policy.failures, policy.stopped_by
            return policy.exit_code

    def _finish_output(self) -> None:
        """Waits until all is printed; for a limited time while nobody reads it.

        No task runs any more, and signals have their former handlers again: SIGTERM ends this
        process, and Ctrl-C the waiting.
        """
        limit = _AWAIT_READER if self.stopped_by is None else _AWAIT_READER_AFTER_SIGNAL
        end = time.monotonic() + limit
        try:
            if self._output.await_reader(limit) and self._generation is not None:
                self._generation.drain()
            self._output.close(max(_LOOK_INTERVAL, end - time.monotonic()))
        except KeyboardInterrupt:
            self._output.close()

    def _start(
        self, start: Start, number: int, identity: _Identity, reached: Sequence[Reached]
    ) -> WatchedTasks:
        """Starts the tasks of one generation (attempt of the run), and hang detection for them."""
        places = told(reached)
        generation = start(number, lambda env: identity.added_to(env, number, places))
        self._generation = generation
        self._started_at = self._events.now()
        if self._hang_timeout is not None:
            limit = None if self._hang_timeout == "auto" else self._hang_timeout
            self._hangs = Hangs(limit, self._events.now(), self._limits, self._hang_option)
        return generation

    def _next_event(self, policy: SupervisorPolicy) -> Event:
        """Waits for the next event: a task has ended, a task hangs, or a signal has arrived.

        Meanwhile the tasks' reports of progress are checked, and messages about tasks without
        progress are printed.

        Args:
            policy: The object that decides what follows from events. Its `deadline` limits the
                waiting.

        Returns:
            The event; None if the deadline has passed.
        """
        while True:
            # It always waits with a timeout: Python handles a signal that arrives just before the
            # waiting system call only after that call has returned.
            wait = _LOOK_INTERVAL
            if policy.deadline is not None:
                wait = min(wait, max(0.0, policy.deadline - self._events.now()))
            event = self._events.get(wait)
            if event is not None:
                if isinstance(event, int) and policy.undisturbed and self._announce_stop:
                    hint = "; again to kill them" if event == signal.SIGINT else ""
                    told = f"{signal_name(event)}: stopping the tasks{hint}"
                    self._output.say(told, after_key=True)
                return self._cause_of(event) if policy.undisturbed else event
            self._show_activity()
            if policy.deadline is not None and self._events.now() >= policy.deadline:
                return None
            if policy.undisturbed and (hang := self._look()):
                return hang

    def _cause_of(self, event: TaskExit | int) -> TaskExit | int | Hang:
        """Returns the hang that has caused an event, or the event itself if there is no such hang.

        If a task has failed while another task is suspended by a signal (SIGSTOP), the suspended
        task is taken for the cause. The failure is then put into the queue again, to be handled
        after the hang. There are two exceptions. An error that a task has raised by itself is the
        cause, whatever the others do. And a task that the others can do without, such as an
        evaluator, neither waits for them nor do they wait for it.

        Args:
            event: The end of a task, or the number of a signal to the supervisor.
        """
        if self._hangs is None or not isinstance(event, TaskExit) or event.returncode == 0:
            return event
        assert self._generation is not None
        apart = self._generation.dispensable
        if event.name in apart:
            return event
        error = self._generation.error(event.name)
        if event.returncode > 0 and error is not None and not error.is_consequence:
            return event
        needed = [name for name in self._generation.stopped() if name not in apart]
        hang = self._hangs.stopped(self._events.now(), needed)
        if hang is None:
            return event
        self._events.put(event)
        return hang

    def _look(self) -> Hang | None:
        """Checks the tasks' reports of progress, and returns a hang, or None if no task hangs.

        If no task hangs, messages are printed about tasks that have made no progress for some time.
        While nobody reads the output, no task counts as hung, since tasks may wait to write.
        """
        if self._hangs is None or self._generation is None:
            return None
        if self._output.is_blocked():
            # Nobody reads the output now. So the tasks may wait, too, to write theirs.
            self._hangs.start_anew(self._events.now())
            return None
        now, pulses = self._events.now(), self._generation.pulses()
        hang = self._hangs.look(now, pulses, self._generation.stopped())
        if hang is None:
            for line in self._hangs.notices(now, pulses):
                self._output.say(line)
        return hang

    def _show_activity(self) -> None:
        """Shows what the tasks are doing, if they have been quiet for a moment."""
        least = self._output.status_after
        if self._generation is None or least is None:
            return
        names, pulses, now = self._generation.names, self._generation.pulses(), self._events.now()
        self._output.status(activity(names, pulses, now, self._started_at, least))


@dataclass(frozen=True)
class _Identity:
    """What all attempts of a run have in common, and each task gets in its environment.

    Attributes:
        run: A random identifier of the run.
        seed: A random number, the seed of all tasks.
        restarts: How often in a row the tasks are restarted.
    """

    run: str
    seed: int
    restarts: int

    @classmethod
    def drawn(cls, restarts: int) -> _Identity:
        return cls(uuid.uuid4().hex, random.SystemRandom().getrandbits(31), restarts)

    def added_to(self, env: Mapping[str, str], generation: int, reached: str) -> dict[str, str]:
        """Returns `env` with the variables of this run, such as KFIT_RUN, for one of its tasks."""
        return {
            "KFIT_SEED": str(self.seed),
            **env,
            "KFIT_RUN": self.run,
            "KFIT_GENERATION": str(generation),
            RESTARTS: str(self.restarts),
            REACHED: reached,
        }
