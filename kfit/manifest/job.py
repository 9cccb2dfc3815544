"""The description of a training job, from which the job files of all systems are written."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kfit.argument_checks import CommandError

LONGEST_NAME = 63
"""The maximum length of a label, a part of a host name: a job's name with an index becomes one."""


@dataclass(frozen=True)
class Job:
    """A training job.

    Args:
        name: Its name, which becomes part of the tasks' host names.
        program: The training program and its arguments, as for `kfit run`.
        workers: The number of tasks that train.
        cpus: CPUs of each task, as the user wrote them; None for the system's default.
        memory: Memory of each task, as the user wrote it; None for the system's default.
        gpus: GPUs of each task.
        max_restarts: How often in a row, without progress, `kfit run` restarts a task.
        start_timeout: Seconds for which a task waits for its peers.
        grace: Seconds that a task has to save when it is told to stop.
        environment: Environment variables to set.
        backup_dir: The directory of snapshots; None if the job file does not need it.
        doctor: Whether the tasks run `kfit doctor` instead of the program.
    """

    name: str
    program: Sequence[str]
    workers: int = 1
    cpus: str | None = None
    memory: str | None = None
    gpus: int = 0
    max_restarts: int = 10
    start_timeout: int = 600
    grace: int = 30
    environment: dict[str, str] = field(default_factory=dict)
    backup_dir: str | None = None
    doctor: bool = False

    def command(self) -> list[str]:
        """Returns the command line that each task runs."""
        if self.doctor:
            backup = [] if self.backup_dir is None else ["--backup-dir", self.backup_dir]
            # Tasks of one job start within minutes of each other, not within seconds.
            return ["kfit", "doctor", "--timeout", str(self.start_timeout), *backup]
        return [
            "kfit",
            "run",
            "--max-restarts",
            str(self.max_restarts),
            "--start-timeout",
            str(self.start_timeout),
            "--grace",
            str(self.grace),
            *self.program,
        ]

    def variables(self) -> dict[str, str]:
        """Returns the environment variables to set: the numbers of threads, and the user's own.

        The threads must be limited, because in a container TensorFlow sees all CPUs of the host,
        including those that the container may not use.
        """
        if self.cpus is None:
            return dict(self.environment)
        threads = str(whole_cpus(self.cpus))
        return {
            "OMP_NUM_THREADS": threads,
            "TF_NUM_INTRAOP_THREADS": threads,
            **self.environment,
        }


def whole_cpus(text: str) -> int:
    """Returns the number of whole CPUs in a quantity such as "8", "2.5" or "500m"; at least 1."""
    number = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    return max(1, int(number))


def name_of(program: Sequence[str]) -> str:
    """Returns a name for a job, such as "train-mnist" for the program "src/train_mnist.py"."""
    if not program:
        return "kfit"
    words = program[1] if program[0] == "-m" and len(program) > 1 else program[0]
    stem = os.path.basename(words).removesuffix(".py")
    name = re.sub("[^a-z0-9]+", "-", stem.lower()).strip("-")
    return name if re.match("[a-z]", name) else f"kfit-{name}".rstrip("-")


def check_environment(pairs: Sequence[str]) -> dict[str, str]:
    """Checks environment variables that were given as `NAME=VALUE`.

    Returns:
        Their values by their names.

    Raises:
        CommandError: If a text is not `NAME=VALUE`, or its value has a character that environment
            variables cannot have.
    """
    found = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise CommandError(f"`--env` is {pair!r}; expected NAME=VALUE")
        refuse_control(f"--env {name}", value)
        found[name] = value
    return found


def refuse_control(what: str, text: str) -> None:
    """Checks that a text has no characters that a job file cannot contain.

    Args:
        what: The option or argument that gave the text, for the message.
        text: The text.

    Raises:
        CommandError: If the text has a NUL, or bytes that could not be decoded.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise CommandError(f"`{what}` is {text!r}, which has NUL or bytes that are not text")
