"""The decisions of the supervisor of `kfit run`, without processes, threads or waiting.

A run may need several attempts; the tasks of one attempt are called a generation. They start and
end together, and a restart is the next generation. The rules are:

- If a task fails, hangs or is preempted, or the supervisor gets a signal to stop, the other tasks
  are asked to stop, and killed if they do not stop in time. But if the task failed because of
  another task, the supervisor first waits for that task to end.
- If a task fails that the others do not need (an evaluator), the others continue; the run counts as
  failed at the end.
- If only tasks are left that serve others (a ps), they are stopped, which is not a failure.
- When all tasks have ended, the run succeeds or fails, or the next generation starts after a delay.
- No generation follows one that has ended by what a restart cannot mend, such as a wrong command
  line (`WRONG_USAGE`).

`SupervisorPolicy` handles one event at a time, and sets the time until which to wait for the next
event. The supervisor passes it real events and tasks; a test passes simulated ones.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kfit.heartbeat import Reached, TaskError
from kfit.heartbeat.stop_notes import ON_ANOTHER
from kfit.heartbeat.summaries import as_clause, is_among, summary_of_lines
from kfit.supervisor.hang_detection import Hang
from kfit.supervisor.process_group import TaskExit, TaskStartError
from kfit.supervisor.restarts import Restarts
from kfit.supervisor.run_report import Failure, report_failure, report_stop
from kfit.supervisor.signals import FORWARDED, signal_name

WRONG_USAGE = 2
"""The exit code of a program whose command line or configuration is wrong, as of `argparse`."""

COULD_NOT_START = 127
"""The exit code of a run whose program could not be started, as in a shell."""

# Seconds that the other tasks have to stop after one has failed. They cannot save anything more
# without the failed one, and meanwhile nobody trains.
_PATIENCE = 3.0
# If a task has failed because another task had failed: seconds to wait for that other task to end,
# so that its error, the cause of the failure, is known.
_CAUSE_DELAY = 2.0
# Seconds for tasks that hang to write their stacks.
_STACK_DUMP_DELAY = 1.0
# Seconds for the system to end a process after SIGKILL. It cannot end one that waits for a broken
# disk.
_KILL_TIMEOUT = 10.0

Event = TaskExit | Hang | int | None
"""A task that has ended, a hang, or a signal to the supervisor; None if the deadline has passed."""


class Tasks(Protocol):
    """An interface to the running tasks (processes) of one attempt of a run.

    `SupervisorPolicy` uses it to stop the tasks. `kfit.supervisor.process_group.Generation`
    implements the interface for processes of this host.
    """

    @property
    def names(self) -> list[str]:
        """The names of all tasks. The end of each one is reported to the policy (`TaskExit`)."""

    @property
    def dispensable(self) -> list[str]:
        """The names of the tasks without which the others can continue, such as an evaluator."""

    @property
    def servers(self) -> list[str]:
        """The names of the tasks that only serve others, and never end by themselves.

        These are the ps tasks and the workers of asynchronous training.
        """

    def signal(self, signum: int, names: Collection[str] | None = None) -> None:
        """Sends a signal to the tasks that still run, usually to ask them to stop.

        Args:
            signum: The number of the signal.
            names: The names of the tasks that get it; None for all.
        """

    def kill(self) -> None:
        """Kills the running tasks."""

    def dump_stacks(self, names: Sequence[str]) -> None:
        """Makes tasks that hang write the stacks of their threads to stderr."""

    def drain(self) -> None:
        """Waits until the output of ended tasks is printed."""

    def close(self) -> None:
        """Removes files that the tasks needed; called after all tasks have ended."""

    def error(self, name: str) -> TaskError | None:
        """Returns the error that a task has recorded; None if it has recorded none."""

    def confirm_ends(self) -> None:
        """Makes the ends of the tasks' trainings count; called when all tasks have succeeded.

        If a task fails after the chief has ended, the snapshots of the training are still needed.
        """

    def stop_note(self, name: str) -> str:
        """Returns what a task has saved when a signal stopped it; empty if it told nothing."""

    def tail(self, name: str) -> list[str]:
        """Returns the last lines that a task wrote to stderr, for the report of a failure."""

    def reached(self, name: str) -> Reached:
        """Returns the last training step that a task has reported, and of which `fit`."""


@dataclass
class _Life:
    """The state of one generation: of the tasks that were started together in one attempt of a run.

    Attributes:
        tasks: The interface to the tasks.
        running: The names of the tasks that still run.
        cause: The event because of which all tasks must end; None if there was none.
        first_failure: The first failure of a task that the other tasks need, or None.
        lost: The latest failure of a task without which the other tasks can continue, or None.
        exits: How each task has ended, by its name; only tasks that have ended.
        waits_for_cause: Whether the supervisor waits for the end of another task, because the
            failure in `cause` was only a consequence of that task's failure.
        interrupted: Whether a SIGINT (Ctrl-C) has been passed on to the tasks.
        over: Whether only servers were left, so that they have been asked to stop.
        spared: Whether a signal has not been passed on to the servers yet, since the other tasks
            need them to save their state.
        asked: The time at which the tasks were first asked to stop; None if they were not.
        killed: The names of the tasks that were killed.
        patience: Seconds from the request to stop until the tasks were killed.
    """

    tasks: Tasks
    running: list[str]
    cause: TaskExit | Hang | int | None = None
    first_failure: TaskExit | None = None
    lost: TaskExit | None = None
    exits: dict[str, TaskExit] = field(default_factory=dict)
    waits_for_cause: bool = False
    interrupted: bool = False
    over: bool = False
    spared: bool = False
    asked: float | None = None
    killed: list[str] = field(default_factory=list)
    patience: float = 0.0


class SupervisorPolicy:
    """A state machine that decides when the tasks of a run are started, stopped and restarted.

    A run may need several attempts; the tasks of one attempt are called a generation.

    Args:
        start: A function that starts the tasks of one generation. It gets the number of the
            generation, from 0, and returns the tasks.
        restarts: The rule that decides after a failure whether there is a next generation.
        grace: Seconds that tasks have to stop before they are killed. After a task has failed, the
            others have at most 3 seconds.
        say: A function that prints a line for the user.
        explain: Whether to print at the end why each generation has failed.
        announce_stop: Whether to print that a signal has stopped the run.
        clock: A function that returns the time in seconds.

    Attributes:
        failures: For each generation that failed, what ended it.
        stopped_by: The first signal that told the supervisor to end the run, or None.
    """

    def __init__(
        self,
        start: Callable[[int], Tasks],
        *,
        restarts: Restarts,
        grace: float,
        say: Callable[[str], None],
        explain: bool = True,
        announce_stop: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._restarts = restarts
        self._grace = grace
        self._say = say
        self._explain = explain
        self._announce_stop = announce_stop
        self._clock = clock
        self._generation = -1
        self._life: _Life | None = None
        self.failures: list[Failure] = []
        self.stopped_by: int | None = None
        self._is_last = False
        self.deadline: float | None = None
        """The time until which to wait for the next event; None for no limit."""
        self.exit_code: int | None = None
        """The exit code of the run; None until the run has ended."""

    @property
    def undisturbed(self) -> bool:
        """Whether tasks run, and no event has happened because of which they must end."""
        return self._life is not None and self._life.cause is None

    def begin(self) -> None:
        """Starts all tasks, for the first time or after a failure.

        If the tasks cannot be started, the run is over, and its exit code is `COULD_NOT_START`.
        """
        self._generation += 1
        self.deadline = None
        try:
            tasks = self._start(self._generation)
        except TaskStartError as error:
            self.failures.append(Failure(self._generation, str(error), ""))
            if self._explain:
                self._say(f"error: {error}")
            self.exit_code = COULD_NOT_START
        else:
            self._life = _Life(tasks, list(tasks.names))

    def handle(self, event: Event) -> None:
        """Handles an event, and takes the actions that follow from it.

        The actions may be to start, signal or kill tasks. The attribute `deadline` is set to the
        time until which to wait for the next event. If the run ends, `exit_code` is set.

        Args:
            event: What happened since the last call; None if `deadline` has passed.
        """
        life = self._life
        if life is None:
            if event is None:
                self.begin()
            elif isinstance(event, int):
                self._stop_waiting(event)
            return
        if isinstance(event, TaskExit):
            self._on_exit(life, event)
        elif isinstance(event, Hang):
            self._on_hang(life, event)
        elif event is None:
            self._on_deadline(life)
        else:
            self._on_signal(life, event)
        if not life.running:
            self._end(life)

    def abandon(self) -> None:
        """Kills all tasks that still run; called when the supervisor ends or has failed itself."""
        if self._life is not None:
            self._life.tasks.kill()

    def _on_exit(self, life: _Life, exit: TaskExit) -> None:
        life.running.remove(exit.name)
        life.exits[exit.name] = exit
        if life.spared and set(life.running) <= set(life.tasks.servers):
            life.spared = False
            life.tasks.signal(signal.SIGTERM)
        if life.over:
            return
        if exit.returncode == 0:
            self._stop_servers(life)
            return
        if life.cause is None and self._is_dispensable(life, exit.name):
            if exit.name not in life.tasks.servers:
                life.lost = exit
            if life.running:
                self._say(f"{exit}; without it go on: {', '.join(life.running)}")
            self._stop_servers(life)
            return
        life.first_failure = life.first_failure or exit
        if life.cause is not None and not life.waits_for_cause:
            return
        error = life.tasks.error(exit.name)
        # A task that was killed or preempted has failed by itself, whatever it had recorded.
        may_follow = error is not None and error.is_consequence and exit.returncode > 0
        if life.cause is None or not may_follow:
            life.cause = exit
        if not life.running:
            return
        if not may_follow or exit.is_preemption or self._first_to_fail(life, exit) != exit:
            self._stop_others(life, exit)
        elif not life.waits_for_cause:
            life.waits_for_cause = True
            self.deadline = self._clock() + min(_CAUSE_DELAY, self._grace)

    def _stop_others(self, life: _Life, exit: TaskExit) -> None:
        """Asks the running tasks to stop, because the task that `exit` describes has failed."""
        life.waits_for_cause = False
        life.cause = first = self._first_to_fail(life, exit)
        text, too = self._describe_whole(life, first), ""
        if first.name in life.running and not self._is_common(life, first):
            too = " as well"
            error = as_clause(self._error_of(life, first))
            own = life.tasks.error(exit.name)
            if own is not None and own.is_consequence:
                # Without restarts the last line of the run has the error.
                why = f": {error}" if self._restarts.budget else ""
                text = f"{first.name} failed{why}, and so {self._describe(life, exit)}"
            else:
                text = f"{first.name} failed: {error}; {self._describe_whole(life, exit)}"
        # Without restarts the last line of the run says what all tasks have in common.
        if self._restarts.budget or not self._is_common(life, first):
            self._say(f"{text}; stopping {', '.join(life.running)}{too}")
        self._ask_to_stop(life, signal.SIGTERM)
        patience = self._grace if exit.is_preemption else min(_PATIENCE, self._grace)
        self.deadline = self._clock() + patience

    def _first_to_fail(self, life: _Life, exit: TaskExit) -> TaskExit:
        """Returns the failure of another task that caused the failure `exit`, or else `exit`.

        If a task fails, tasks that communicate with it fail soon afterwards. Each task records its
        error, and whether the error is such a consequence. The cause is the first error that is no
        consequence. If the task with this error still runs, or was stopped meanwhile, its exit code
        is taken for 1. A task that was killed or preempted, or that recorded no error, has failed
        by itself.
        """
        own = life.tasks.error(exit.name)
        if exit.returncode <= 0 or exit.is_preemption or own is None:
            return exit
        errors = {name: life.tasks.error(name) for name in life.tasks.names}
        causes = {
            name: error.time
            for name, error in errors.items()
            # A task that has ended with 0 has handled its error.
            if error is not None
            and not error.is_consequence
            and not (name in life.exits and life.exits[name].returncode == 0)
        }
        if not causes:
            return exit
        first = min(causes, key=lambda name: causes[name])
        ended = life.exits.get(first)
        # A task that still runs, or was stopped meanwhile, would have ended with Python's code 1.
        spoke = ended is not None and ended.returncode > 0 and not ended.is_preemption
        return ended if ended is not None and spoke else TaskExit(first, 1)

    def _is_common(self, life: _Life, cause: TaskExit | Hang) -> bool:
        """Returns whether all tasks of several have failed by the same error, each by itself."""
        if len(life.tasks.names) == 1 or not self._error_of(life, cause):
            return False
        errors = [life.tasks.error(name) for name in life.tasks.names]
        own = {error.summary for error in errors if error is not None and not error.is_consequence}
        is_own = all(error is not None and not error.is_consequence for error in errors)
        return is_own and len(own) == 1

    def _is_dispensable(self, life: _Life, name: str) -> bool:
        """Returns whether the other tasks can continue without the task `name`, which has ended.

        The task must be marked as one that the others can do without (`TaskCommand.dispensable`).
        For an evaluator that is enough. For a worker of asynchronous training, another such worker
        must still run.
        """
        dispensable, servers = life.tasks.dispensable, life.tasks.servers
        if name not in dispensable or name not in servers:
            return name in dispensable
        return any(other in dispensable and other in servers for other in life.running)

    def _stop_servers(self, life: _Life) -> None:
        """Asks servers (tasks that only serve others) to stop, if no other tasks are left.

        Nothing happens if other tasks still run, or if all tasks must end anyway.
        """
        if life.cause is None and life.running and set(life.running) <= set(life.tasks.servers):
            life.over = True
            self._ask_to_stop(life, signal.SIGTERM)
            self.deadline = self._clock() + self._grace

    def _on_hang(self, life: _Life, hang: Hang) -> None:
        if life.cause is not None:
            return
        life.cause = hang
        # A task that was stopped by a signal cannot write its stacks.
        asked = [name for name in hang.stalled if not hang.stopped or name not in hang.culprits]
        shown = f"; the stacks of {', '.join(asked)}:" if asked else ""
        self._say(self._describe(life, hang) + shown)
        life.tasks.dump_stacks(asked)
        self.deadline = self._clock() + (_STACK_DUMP_DELAY if asked else 0.0)

    def _on_signal(self, life: _Life, signum: int) -> None:
        self._is_last = True
        self.stopped_by = self.stopped_by or signum
        if life.waits_for_cause:
            life.waits_for_cause = False
            self.deadline = None
        if signum == signal.SIGINT and life.interrupted:
            self._kill(life)
            return
        life.interrupted = life.interrupted or signum == signal.SIGINT
        life.cause = life.cause or signum
        self._ask_to_stop(life, signum, spares_servers=True)
        if self.deadline is None:
            self.deadline = self._clock() + self._grace

    def _on_deadline(self, life: _Life) -> None:
        if life.waits_for_cause:
            assert isinstance(life.cause, TaskExit)
            self._stop_others(life, life.cause)
            return
        if not life.killed:
            self._kill(life)
            return
        self._say(f"survived SIGKILL and may still run: {', '.join(life.running)}")
        # Such a task may still hold its device, and write files, so the tasks are not restarted.
        self._is_last = True
        life.running.clear()

    def _ask_to_stop(self, life: _Life, signum: int, *, spares_servers: bool = False) -> None:
        """Passes a signal on to the running tasks.

        Args:
            life: The tasks.
            signum: The number of the signal.
            spares_servers: Whether servers get SIGTERM only when no other task runs any more:
                without them the chief could neither end its step nor read the variables.
        """
        life.asked = self._clock() if life.asked is None else life.asked
        servers = life.tasks.servers if spares_servers else []
        others = [name for name in life.running if name not in servers]
        life.spared = bool(others) and len(others) < len(life.running)
        life.tasks.signal(signum, others if life.spared else None)

    def _kill(self, life: _Life) -> None:
        if not life.killed:
            life.killed = list(life.running)
            life.patience = 0.0 if life.asked is None else self._clock() - life.asked
        life.tasks.kill()
        self.deadline = self._clock() + _KILL_TIMEOUT

    def _end(self, life: _Life) -> None:
        """Decides what follows when all tasks have ended.

        Either the run is over: its exit code is set, and a report is printed. Or the time is set at
        which the tasks are started again.
        """
        life.tasks.drain()
        self._life = self.deadline = None
        if isinstance(life.cause, TaskExit):
            life.cause = self._first_to_fail(life, life.cause)
        if life.killed and not isinstance(life.cause, Hang):
            names = ", ".join(life.killed)
            self._say(f"killed {life.patience:.1f} s after the request to stop: {names}")
        if life.cause is None and life.lost is not None:
            self._note(life, life.lost)
            self._give_up(life, life.lost)
        elif life.cause is None:
            self.exit_code = 0
            life.tasks.confirm_ends()
            if self._generation:
                first, *others = life.tasks.names
                who = "all tasks" if others else first
                self._say(f"{who} ended well in attempt {self._generation + 1}")
        elif isinstance(life.cause, int):
            failure = life.first_failure
            # A run that was stopped by a signal is no success, even if its tasks ended with 0.
            self.exit_code = failure.exit_code if failure else 128 + life.cause
            notes = filter(None, map(life.tasks.stop_note, life.tasks.names))
            is_same = failure is None or failure.exit_code == 128 + life.cause
            # The first task to learn of the signal may have got it later than another one.
            saved = next(notes, "" if is_same else str(failure)).removeprefix(ON_ANOTHER)
            self._report_stop(life.cause, saved)
        else:
            self._restart_or_give_up(life, life.cause)
        life.tasks.close()

    def _restart_or_give_up(self, life: _Life, cause: TaskExit | Hang) -> None:
        self._note(life, cause)
        recorded = life.tasks.error(cause.name)
        own = None if recorded is None or recorded.is_consequence else recorded
        delay = self._restarts.after(
            max(map(life.tasks.reached, life.tasks.names), default=Reached()),
            preempted=cause.is_preemption,
            error=self._error_of(life, cause) if own else "",
        )
        if self._restarts.is_repeated and self._restarts.failures <= self._restarts.budget:
            self._say(
                "the same error ended two attempts in a row, and the second made no progress; a "
                "restart would end so again, so there is none"
            )
        elif own and own.is_permanent and self._restarts.budget:
            self._say("a restart would end by the same error, so there is none")
            delay = None
        elif cause.exit_code == WRONG_USAGE and self._restarts.budget:
            self._say(
                f"exit code {WRONG_USAGE} means that the command line or the configuration is "
                "wrong, so there is no restart"
            )
            delay = None
        if delay is None or self._is_last:
            self._give_up(life, cause)
            return
        count, budget = self._restarts.failures, self._restarts.budget
        counted = (
            f"restart {count} of at most {budget} in a row"
            if count
            else "a preemption, which costs no restart"
        )
        # If tasks were asked to stop, the cause was printed then.
        is_new = isinstance(cause, TaskExit) and life.asked is None
        last = self.failures[-1]
        told = last.in_short if last.is_just_printed else self._describe_whole(life, cause)
        why = f"{told}; " if is_new else ""
        self._say(f"{why}attempt {self._generation + 2} starts in {delay:.1f} s ({counted})")
        self.deadline = self._clock() + delay

    def _note(self, life: _Life, cause: TaskExit | Hang) -> None:
        """Adds to `failures` a description of what ended the tasks of this attempt."""
        tail = life.tasks.tail(cause.name)
        # Only a task that ended by itself can have printed the reason.
        speaks = tail and isinstance(cause, TaskExit) and cause.returncode > 0
        last_line, error = summary_of_lines(tail) if speaks else "", self._error_of(life, cause)
        # Another supervisor around this one would show these lines and its own.
        is_alone = len(life.tasks.names) == 1 and self._announce_stop
        self.failures.append(
            Failure(
                self._generation,
                self._describe(life, cause),
                last_line,
                task=cause.name,
                hint=cause.hint + self._advice(life, cause),
                error=error,
                is_just_printed=is_alone and is_among(error or last_line, tail),
            )
        )

    def _advice(self, life: _Life, cause: TaskExit | Hang) -> str:
        """Returns how a training goes on that no error of the program has ended, as advice.

        The result is empty if an error has, no step was taken, or restarts are allowed already.
        """
        is_told = self._explain and self._announce_stop and not self._restarts.budget
        has_failed = isinstance(cause, TaskExit) and cause.returncode > 0
        if not is_told or life.tasks.reached(cause.name) == Reached():
            return ""
        if has_failed and not cause.is_preemption:
            return ""
        return (
            "; with BackupAndRestore the same command resumes at the last snapshot, and "
            "`--max-restarts 3` does so by itself"
        )

    def _give_up(self, life: _Life, cause: TaskExit | Hang) -> None:
        self.exit_code = cause.exit_code
        if (note := self._note_of_stop_elsewhere(life, cause)) and len(self.failures) == 1:
            self._report_stop(cause.exit_code - 128, note)
        elif self._explain:
            report_failure(self._say, self.failures)

    def _note_of_stop_elsewhere(self, life: _Life, cause: TaskExit | Hang) -> str:
        """Returns what was saved when a signal to a task of another supervisor stopped these tasks.

        So it is if each host, or terminal, has a `kfit run` of its own: all tasks stop together.
        The result is empty if `cause` is something else.
        """
        if isinstance(cause, Hang) or cause.exit_code - 128 not in FORWARDED:
            return ""
        note = life.tasks.stop_note(cause.name)
        return note if note.startswith(ON_ANOTHER) else ""

    def _stop_waiting(self, signum: int) -> None:
        self.deadline = None
        self.stopped_by = signum
        self.exit_code = 128 + signum
        self._report_stop(signum, f"before the next start; {self.failures[-1]}")

    def _report_stop(self, signum: int, circumstance: str) -> None:
        if self._announce_stop:
            report_stop(self._say, signum, circumstance)

    def _error_of(self, life: _Life, cause: TaskExit | Hang) -> str:
        """Returns the error that the failed task has recorded, in one line; empty if there is none.

        The result is also empty if the task hung or was killed.
        """
        if isinstance(cause, Hang) or cause.returncode <= 0:
            return ""
        error = life.tasks.error(cause.name)
        return error.summary if error else ""

    def _describe_whole(self, life: _Life, cause: TaskExit | Hang) -> str:
        """Describes what ended the tasks, with the error; more can follow in the same sentence."""
        error = as_clause(self._error_of(life, cause))
        return self._describe(life, cause) + (f": {error}" if error else "")

    def _describe(self, life: _Life, cause: TaskExit | Hang) -> str:
        """Describes what ended the tasks, and how far the failed task had come."""
        preempted = ", preempted" if cause.is_preemption else ""
        place = life.tasks.reached(cause.name).in_words
        if self._is_common(life, cause):
            count = len(life.tasks.names)
            who = "both tasks" if count == 2 else f"all {count} tasks"
            cause_text = f"{who} failed by the same error"
        elif self._note_of_stop_elsewhere(life, cause):
            name = signal_name(cause.exit_code - 128)
            cause_text = f"{cause.name} was stopped by {name} {ON_ANOTHER.strip()}"
        else:
            cause_text = str(cause)
        return f"{cause_text}{preempted}" + (f" {place}" if place else "")
