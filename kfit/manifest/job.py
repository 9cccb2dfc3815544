"""Describes a training job, from which `kfit manifest` writes the job file of any system."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from kfit.argument_checks import CommandError

LONGEST_NAME = 63
"""The maximum length of a part of a host name, such as a job's name with the index of a task."""


@dataclass(frozen=True)
class Job:
    """A description of a training job that runs on a cluster.

    Args:
        name: The name of the job, which becomes part of the tasks' host names.
        program: The training program and its arguments, as for `kfit run`.
        workers: The number of worker tasks.
        cpus: The number of CPUs of each task, as the user wrote it; None for the system's default.
        memory: The memory of each task, as the user wrote it; None for the system's default.
        gpus: The number of GPUs of each task.
        max_restarts: How often in a row, without progress, `kfit run` restarts a task.
        start_timeout: Seconds for which a task waits for the other tasks to start.
        grace: Seconds that a task has to save when it is told to stop.
        environment: Environment variables to set.
        backup_dir: The directory to which the program's `BackupAndRestore` saves. It is needed only
            if Kubernetes mounts a volume there, or if `kfit doctor` checks it; otherwise None.
        doctor: Whether the tasks run `kfit doctor`, which examines the cluster, instead of the
            program.
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
        """Returns the command line that each task of the job runs: `kfit run` with the program.

        If `doctor` is set, the command is `kfit doctor`.
        """
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
        """Returns the environment variables of each task: the user's, and limits of threads.

        The threads must be limited, because in a container TensorFlow sees all CPUs of the host,
        including those that the container may not use. If `cpus` is None, the limits are left out.
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
    """Returns the number of whole CPUs in a quantity of Kubernetes or Slurm, but at least 1.

    Args:
        text: The quantity, such as "8", "2.5" or "500m" (500 thousandths).
    """
    number = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    return max(1, int(number))


def name_of(program: Sequence[str]) -> str:
    """Returns a name for the job that runs a program, used if the user gives the job no name.

    For example, the name for the program "src/train_mnist.py" is "train-mnist".

    Args:
        program: The training program and its arguments, as for `kfit run`.
    """
    if not program:
        return "kfit"
    words = program[1] if program[0] == "-m" and len(program) > 1 else program[0]
    stem = os.path.basename(words).removesuffix(".py")
    name = re.sub("[^a-z0-9]+", "-", stem.lower()).strip("-")
    return name if re.match("[a-z]", name) else f"kfit-{name}".rstrip("-")


def check_environment(pairs: Sequence[str]) -> dict[str, str]:
    """Checks the environment variables that the user gave by options `--env NAME=VALUE`.

    Args:
        pairs: The texts `NAME=VALUE`.

    Returns:
        The values of the variables by their names.

    Raises:
        CommandError: If a text is not `NAME=VALUE`, or a value has a character that environment
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
        what: The option or argument in which the user gave the text, for the error message.
        text: The text to check.

    Raises:
        CommandError: If the text has a NUL, or bytes that could not be decoded.
    """
    if "\0" in text or any("\ud800" <= character <= "\udfff" for character in text):
        raise CommandError(f"`{what}` is {text!r}, which has NUL or bytes that are not text")
