"""Prints the final report of a run, whose last line is the cause of its failure."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kfit.heartbeat.stop_notes import ON_ANOTHER
from kfit.supervisor.signals import signal_name

# The most failures to list: a run of weeks may have had thousands of preemptions.
_MOST_FAILURES = 20
_CLASS = re.compile(r"(?:\w+\.)*([A-Z]\w*): ")


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
        is_just_printed: Whether the error, or else the last line, is among the last lines of the
            output, since the task that has printed it is the only one.
    """

    generation: int
    cause: str
    last_line: str
    task: str = ""
    hint: str = ""
    error: str = ""
    is_just_printed: bool = False

    def __str__(self) -> str:
        message = self.message
        return f"{self.cause}: {message}" if message else self.cause

    @property
    def message(self) -> str:
        """What went wrong, in one line; empty if that is not known."""
        message = self.error or self.last_line
        # A supervisor within the task has ended its report by the same words.
        return message.removeprefix("kfit: error: ").removeprefix(f"{self.cause}: ")

    @property
    def in_short(self) -> str:
        """The cause, with the message only if it has not just been printed."""
        if not self.is_just_printed or not self.message:
            return str(self)
        name = _CLASS.match(self.message)
        return f"{self.cause} ({name[1]}, above)" if name else f"{self.cause} (see above)"


def report_failure(say: Callable[[str], None], failures: Sequence[Failure]) -> None:
    """Prints what ended each attempt of a run; the last line is about the last attempt.

    The traceback is not repeated: the task has printed it. Nor is the error of a single task that
    has just printed it; among the output of several tasks it would be hard to find.

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
    last = failures[-1]
    say(f"error: {last.in_short if len(failures) == 1 else last}{last.hint}")


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
