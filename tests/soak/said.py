"""Reads what `kfit run` has printed: the attempts of a run, and where each resumed."""

import json
import re
from dataclasses import dataclass
from typing import Any

_RESUMED = r"kfit: (?:going on from .*?, step (\d+)|nothing to do: .* \(step (\d+)\))"


@dataclass(frozen=True)
class Attempt:
    """One attempt (generation) of a run.

    Attributes:
        number: Its number, from 0.
        text: What was printed from its start until the next one was announced.
        was_restarted: Whether `kfit run` started the tasks again after it.
    """

    number: int
    text: str
    was_restarted: bool

    @property
    def resumed_at(self) -> int | None:
        """The step of the snapshot from which it resumed; None if it has not said so."""
        found = re.search(_RESUMED, self.text)
        return int(found[1] or found[2]) if found else None


def attempts(text: str) -> list[Attempt]:
    """Splits what a run has printed into its attempts."""
    found: list[Attempt] = []
    lines: list[str] = []
    for line in text.splitlines():
        lines.append(line)
        # The lines of tasks begin with their names, so this one is of the run itself.
        if re.match(r"kfit: .*\battempt \d+ starts in", line):
            found.append(Attempt(len(found), "\n".join(lines), was_restarted=True))
            lines = []
    return [*found, Attempt(len(found), "\n".join(lines), was_restarted=False)]


def epochs_told(text: str) -> list[int]:
    """The numbers of epochs that tasks have printed when their training had ended."""
    return [int(each) for each in re.findall(r"DIGEST \w+ EPOCHS (\d+)", text)]


def figures(text: str) -> dict[str, Any]:
    """The figures that the chief printed when its training had ended; empty if it did not."""
    found = re.findall(r"FIGURES (\{.*\})", text)
    return json.loads(found[-1]) if found else {}
