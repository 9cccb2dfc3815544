"""The last report of a run: every line that a person needs, and the cause as the very last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kfit.supervisor.signals import signal_name

# A run of weeks may have seen thousands of preemptions.
_MOST_FAILURES = 20


@dataclass(frozen=True)
class Failure:
    """What ended one generation.

    Attributes:
        generation: Its number, from 0.
        cause: What came first, and the step it came at.
        last_line: The last line that the task to blame wrote to stderr, if any.
        task: The task to blame; empty if none could be started.
        hint: What may be behind it, to be put after the cause.
        error: What that task has noted that it failed with, if anything.
    """

    generation: int
    cause: str
    last_line: str
    task: str = ""
    hint: str = ""
    error: str = ""

    @property
    def whole_cause(self) -> str:
        """The cause, with the error behind it."""
        return f"{self.cause}: {self.error}" if self.error else self.cause

    def __str__(self) -> str:
        said = self.error or self.last_line
        return f"{self.cause}: {said}" if said else self.cause


def report_failure(
    say: Callable[[str], None],
    failures: Sequence[Failure],
    name: str,
    tail: Sequence[str],
) -> None:
    """Says what ended each generation, and what ended the last one.

    Args:
        say: Writes a line.
        failures: Those of all generations, the last one included.
        name: The task to blame for the last one.
        tail: The last lines that it wrote to stderr.
    """
    if len(failures) > 1:
        say("gave up; what ended each generation:")
        left_out = len(failures) - _MOST_FAILURES
        if left_out > 0:
            say(f"  ({left_out} earlier ones)")
        for failure in failures[-_MOST_FAILURES:]:
            say(f"  generation {failure.generation}: {failure}")
    if tail:
        say(f"the last lines of {name} on stderr:")
    for line in tail:
        say(f"  {line}")
    say(f"error: {failures[-1].whole_cause}{failures[-1].hint}")


def report_stop(say: Callable[[str], None], signum: int, circumstance: str) -> None:
    """Says that the supervisor was told to stop.

    Args:
        say: Writes a line.
        signum: The signal that told it.
        circumstance: What came of it, in words; may be empty.
    """
    say(f"stopped by {signal_name(signum)}" + (f"; {circumstance}" if circumstance else ""))
