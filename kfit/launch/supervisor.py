"""Start, watch and stop the tasks of a cluster on this host.

The supervisor owns the decisions: the first task that fails ends the others, signals are passed
on, whoever does not stop in time is killed, and the exit code and the last line say what came
first. `Generation` owns the processes; this module only ever waits for the next event of one queue.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import TextIO

from kfit.launch.generation import Generation, TaskCommand, TaskExit, TaskStartError, signal_name
from kfit.launch.output import Output
from kfit.launch.watcher import Watcher

__all__ = ["DEFAULT_GRACE", "Plan", "Supervisor", "TaskCommand"]

DEFAULT_GRACE = 15.0
"""Seconds from SIGTERM to SIGKILL: time for a snapshot, half of what Kubernetes and Slurm give."""

Plan = Callable[[], Sequence[TaskCommand]]
"""Makes the commands of one generation of tasks, on ports that are free now."""

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COULD_NOT_START = 127
# Seconds for the system to end a process after SIGKILL; one that waits for a broken disk does not.
_BURIAL = 10.0


@dataclass
class _Outcome:
    """How a generation ended: what was first to end it, and what that took."""

    cause: TaskExit | int | None = None
    first_failure: TaskExit | None = None
    killed: list[str] = field(default_factory=list)
    undead: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        if self.first_failure is not None:
            return self.first_failure.exit_code
        # A run that was told to stop is no success, however well its tasks took it.
        return 128 + self.cause if isinstance(self.cause, int) else 0


class Supervisor:
    """Runs the tasks of a cluster on this host until all have ended.

    Every task runs in a session and process group of its own. SIGINT, SIGTERM and SIGHUP are
    passed on to the tasks; a second Ctrl-C kills them. A signal that this process was started to
    ignore (`nohup`) stays ignored. No task outlives the supervisor, not even when that is killed.

    Args:
        plan: Makes the commands to run.
        grace: Seconds that tasks have to stop before they are killed.
        prefix: Whether to put each task's name before its lines; if not, the tasks write to this
            process's own stdout and stderr.
        stdout: Where the tasks' standard output goes; `sys.stdout` if not given.
        stderr: Where the tasks' standard error and the last report go; `sys.stderr` if not given.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        grace: float = DEFAULT_GRACE,
        prefix: bool = True,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
    ) -> None:
        self._plan = plan
        self._grace = grace
        self._prefix = prefix
        self._output = Output(stdout or sys.stdout, stderr or sys.stderr)
        # A SimpleQueue may be filled by a signal handler that interrupts its own reader.
        self._events: queue.SimpleQueue[TaskExit | int] = queue.SimpleQueue()

    def run(self) -> int:
        """Runs one generation of tasks to its end.

        Returns:
            0 when all tasks succeeded, else the exit code of the first that failed, 128 + the
            signal's number for one that was killed, or for a run that a signal ended.
        """
        with Watcher() as watcher, _signals_to(self._events.put):
            generation = Generation(
                self._plan(),
                output=self._output,
                watcher=watcher,
                on_exit=self._events.put,
                prefix=self._prefix,
            )
            try:
                generation.start()
            except TaskStartError as error:
                self._output.say(f"error: {error}")
                return _COULD_NOT_START
            try:
                outcome = self._watch(generation)
            finally:
                generation.kill()
            generation.drain()
            self._report(outcome, generation)
            return outcome.exit_code

    def _watch(self, generation: Generation) -> _Outcome:
        """Waits for the tasks; stops all of them at the first failure or signal."""
        outcome = _Outcome()
        running = list(generation.names)
        deadline: float | None = None
        interrupted = False
        while running:
            event = self._next_event(deadline)
            if isinstance(event, TaskExit):
                running.remove(event.name)
                if event.returncode == 0:
                    continue
                outcome.first_failure = outcome.first_failure or event
                if outcome.cause is None:
                    outcome.cause = event
                    if running:
                        self._output.say(f"{event}; stopping {', '.join(running)}")
                        generation.signal(signal.SIGTERM)
                        deadline = time.monotonic() + self._grace
            elif event is None and outcome.killed:
                outcome.undead = running
                break
            elif event is None or (event == signal.SIGINT and interrupted):
                outcome.killed = list(running)
                generation.kill()
                deadline = time.monotonic() + _BURIAL
            else:
                interrupted = interrupted or event == signal.SIGINT
                outcome.cause = outcome.cause or event
                generation.signal(event)
                deadline = deadline or time.monotonic() + self._grace
        return outcome

    def _next_event(self, deadline: float | None) -> TaskExit | int | None:
        """Returns the next exit or signal; None when the deadline has passed."""
        timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def _report(self, outcome: _Outcome, generation: Generation) -> None:
        """Says what ended the tasks; the cause is the very last line."""
        say, cause, failure = self._output.say, outcome.cause, outcome.first_failure
        if outcome.killed:
            say(f"did not stop in time and had to be killed: {', '.join(outcome.killed)}")
        if outcome.undead:
            say(f"survived SIGKILL and may still run: {', '.join(outcome.undead)}")
        if isinstance(cause, TaskExit):
            tail = generation.tail(cause.name)
            if tail:
                say(f"the last lines of {cause.name} on stderr:")
            for line in tail:
                say(f"  {line}")
            say(f"error: {cause}{_hint(cause)}")
        elif cause is not None:
            say(f"stopped by {signal_name(cause)}" + (f"; {failure}" if failure else ""))


def _hint(failure: TaskExit) -> str:
    if failure.returncode == -signal.SIGKILL:
        return ", perhaps because this host is out of memory"
    return ""


@contextlib.contextmanager
def _signals_to(put: Callable[[int], None]) -> Iterator[None]:
    """Turns signals into events, in the main thread; elsewhere Python lets nobody handle them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        put(signum)

    taken = [signum for signum in _FORWARDED if signal.getsignal(signum) is not signal.SIG_IGN]
    before = {signum: signal.signal(signum, handle) for signum in taken}
    try:
        yield
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
