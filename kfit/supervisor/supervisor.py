"""Start, watch, restart and stop the tasks of a cluster.

The supervisor owns the effects: it starts the generations of tasks, takes signals, looks at the
heartbeats and waits for the next event of one queue. What follows from an event `SupervisorPolicy`
decides, by the rules in `restarts` and `hangs`; a `Backend` starts the processes, on this host
unless told otherwise.
"""

from __future__ import annotations

import queue
import random
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TextIO

from kfit.argument_checks import check_seconds
from kfit.supervisor.backend import Backend, LocalBackend, Plan, Start, WatchedTasks
from kfit.supervisor.hang_detection import Hang, Hangs, Limits
from kfit.supervisor.output import Output
from kfit.supervisor.policy import Event, SupervisorPolicy
from kfit.supervisor.process_group import TaskCommand, TaskExit
from kfit.supervisor.report import Failure
from kfit.supervisor.restarts import Restarts
from kfit.supervisor.signals import signals_to

__all__ = ["DEFAULT_GRACE", "HangTimeout", "Plan", "Supervisor", "TaskCommand"]

DEFAULT_GRACE = 15.0
"""Seconds from SIGTERM to SIGKILL: time for a snapshot, half of what Kubernetes and Slurm give."""

HangTimeout = float | Literal["auto"] | None
"""Seconds without progress after which a task hangs; learned from its rhythm; or never."""

# Seconds between two looks at the heartbeats, and for signals.
_LOOK_INTERVAL = 0.5


class Supervisor:
    """Runs the tasks of a cluster until all have ended well, or no more can be done.

    Every task runs in a session and process group of its own. SIGINT, SIGTERM, SIGHUP and SIGUSR1
    are passed on to the tasks, and end the run; a second Ctrl-C kills them. A signal that this
    process was started to ignore (`nohup`) stays ignored. No task outlives the supervisor, not even
    when that is killed.

    When a task fails, hangs or is preempted, all end and are started again: the next generation.
    Besides its plan's environment a task gets KFIT_RUN, one name for all generations of the run;
    KFIT_GENERATION, which counts them from 0; KFIT_SEED, one random number for all of them, unless
    it is set; and KFIT_HEARTBEAT, see `kfit.heartbeat`.

    Args:
        plan: Makes the commands to run on this host, called for each generation; or the `Backend`
            that starts them elsewhere.
        grace: Seconds that tasks have to stop before they are killed. After one has failed the
            others have 3 at most.
        max_restarts: How often the tasks are started again before they take a step beyond the
            furthest of all generations before; from then on the count begins anew. 0 never starts
            anything again.
        hang_timeout: Seconds without progress after which a task in `fit`, `evaluate` or `predict`
            counts as hung; `"auto"` takes those of `limits`, None never calls a hang.
        limits: What `"auto"` comes to.
        hang_option: What the user changes `hang_timeout` by, for messages.
        prefix: Whether to put each task's name before its lines; if not, the tasks of this host
            write to this process's own stdout and stderr.
        explain: Whether to say in the end why no other generation follows; if not, `failures` tell.
        stdout: Where the tasks' standard output goes; `sys.stdout` if not given.
        stderr: Where the tasks' standard error and the last report go; `sys.stderr` if not given.

    Attributes:
        failures: What ended each generation that failed, after `run`.
        stopped_by: The signal that told this process to end the run; None if there was none.

    Raises:
        ValueError: `max_restarts` is below 0, or `hang_timeout` is no positive number.
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
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
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
        self._output = Output(stdout or sys.stdout, stderr or sys.stderr)
        # A SimpleQueue may be filled by a signal handler that interrupts its own reader.
        self._events: queue.SimpleQueue[TaskExit | int] = queue.SimpleQueue()
        self._generation: WatchedTasks | None = None
        self._hangs: Hangs | None = None
        self.failures: list[Failure] = []
        self.stopped_by: int | None = None

    def run(self) -> int:
        """Runs generations of tasks until one ends well, or no other may follow.

        Returns:
            0 when all tasks succeeded, else the exit code of the last generation's first failure:
            128 + the signal's number for a task that was killed, 137 for one that hung; or 128 +
            the signal's number for a run that a signal ended.
        """
        with (
            self._backend.opened(self._output, self._events.put) as start,
            signals_to(self._events.put),
        ):
            identity = _Identity.drawn()
            policy = SupervisorPolicy(
                lambda number: self._start(start, number, identity),
                restarts=Restarts(self._max_restarts),
                grace=self._grace,
                say=self._output.say,
                explain=self._explain,
            )
            try:
                policy.begin()
                while policy.exit_code is None:
                    policy.handle(self._next_event(policy))
            finally:
                policy.abandon()
                self.failures, self.stopped_by = policy.failures, policy.stopped_by
            return policy.exit_code

    def _start(self, start: Start, number: int, identity: _Identity) -> WatchedTasks:
        """Starts the generation with that number."""
        generation = start(number, lambda env: identity.added_to(env, number))
        self._generation = generation
        if self._hang_timeout is not None:
            limit = None if self._hang_timeout == "auto" else self._hang_timeout
            self._hangs = Hangs(limit, time.monotonic(), self._limits, self._hang_option)
        return generation

    def _next_event(self, policy: SupervisorPolicy) -> Event:
        """Waits for the next exit, signal, hang or deadline."""
        while True:
            # Not for ever: a signal that comes between Python's last look for signals and the
            # system call that waits is handled only when that returns.
            wait = _LOOK_INTERVAL
            if policy.deadline is not None:
                wait = min(wait, max(0.0, policy.deadline - time.monotonic()))
            try:
                event = self._events.get(timeout=wait)
            except queue.Empty:
                pass
            else:
                return self._cause_of(event) if policy.undisturbed else event
            if policy.deadline is not None and time.monotonic() >= policy.deadline:
                return None
            if policy.undisturbed and (hang := self._look()):
                return hang

    def _cause_of(self, event: TaskExit | int) -> TaskExit | int | Hang:
        """Returns the hang that made a task fail, if there is one, and the failure after it."""
        if self._hangs is None or not isinstance(event, TaskExit) or event.returncode == 0:
            return event
        hang = self._hangs.stopped(time.monotonic())
        if hang is None or event.name in hang.culprits:
            return event
        self._events.put(event)
        return hang

    def _look(self) -> Hang | None:
        """Looks whether a task hangs, and says which may."""
        if self._hangs is None or self._generation is None:
            return None
        if self._output.is_blocked():
            # The tasks wait for whoever reads their output.
            self._hangs.start_anew(time.monotonic())
            return None
        now, pulses = time.monotonic(), self._generation.pulses()
        hang = self._hangs.look(now, pulses, self._generation.stopped())
        if hang is None:
            for line in self._hangs.notices(now, pulses):
                self._output.say(line)
        return hang


@dataclass(frozen=True)
class _Identity:
    """What all generations of a run have in common."""

    run: str
    seed: int

    @classmethod
    def drawn(cls) -> _Identity:
        return cls(uuid.uuid4().hex, random.SystemRandom().getrandbits(31))

    def added_to(self, env: Mapping[str, str], generation: int) -> dict[str, str]:
        """Returns the environment of a task of that generation."""
        return {
            "KFIT_SEED": str(self.seed),
            **env,
            "KFIT_RUN": self.run,
            "KFIT_GENERATION": str(generation),
        }
