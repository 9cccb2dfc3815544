"""Prints the final report of a run, whose last line is the cause of its failure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kfit.heartbeat.stop_notes import ON_ANOTHER
from kfit.supervisor.signals import signal_name

# The most failures to list: a run of weeks may have had thousands of preemptions.
_MOST_FAILURES = 20


@dataclass(frozen=True)
class Failure:
    """The failure that ended one generation: the tasks of one attempt of a run.

    Attributes:
        generation: The number of the generation, from 0; its attempt is printed from 1.
        cause: A description of what ended the attempt, with the step that the failed task had
            reached.
        last_line: The line that says what went wrong, of the last lines that the failed task wrote
            to stderr; empty if there is none, or if the task hung or was killed.
        task: The name of the failed task; empty if no task could be started.
        hint: A possible reason or advice, which is appended to the cause.
        error: The error that the task has recorded, in one line; empty if there is none, or if the
            task hung or was killed.
    """

    generation: int
    cause: str
    last_line: str
    task: str = ""
    hint: str = ""
    error: str = ""

    def __str__(self) -> str:
        message = self.error or self.last_line
        # A supervisor within the task has ended its report by the same words.
        message = message.removeprefix("kfit: error: ").removeprefix(f"{self.cause}: ")
        return f"{self.cause}: {message}" if message else self.cause


def report_failure(say: Callable[[str], None], failures: Sequence[Failure]) -> None:
    """Prints what ended each attempt of a run; the last line is about the last attempt.

    The traceback is not repeated: the task has printed it.

    Args:
        say: A function that prints a line.
        failures: The failures of all attempts, including the last one.
    """
    if len(failures) > 1:
        say("gave up; what ended each attempt:")
        left_out = len(failures) - _MOST_FAILURES
        if left_out > 0:
            say(f"  ({left_out} earlier ones)")
        for failure in failures[-_MOST_FAILURES:]:
            say(f"  attempt {failure.generation + 1}: {failure}")
    say(f"error: {failures[-1]}{failures[-1].hint}")


def report_stop(say: Callable[[str], None], signum: int, circumstance: str) -> None:
    """Prints that a signal has stopped the run.

    Args:
        say: A function that prints a line.
        signum: The number of the signal.
        circumstance: What else happened, in words, such as "after step 9; saved in 'backup'"; may
            be empty.
    """
    link = " " if circumstance.startswith(("after ", ON_ANOTHER)) else "; "
    say(f"stopped by {signal_name(signum)}" + (f"{link}{circumstance}" if circumstance else ""))
