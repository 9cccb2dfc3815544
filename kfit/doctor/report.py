"""What a task tells the others of itself, and how it is written on the wire.

One line of JSON behind a magic word. What is read from a peer is checked field by field and never
more than `LONGEST_LINE` bytes long; nothing but texts, numbers and lists of them is made from it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

MAGIC = b"KFIT-DOCTOR/1 "
LONGEST_LINE = 1 << 16


@dataclass(frozen=True)
class Report:
    """What one task is and has.

    Args:
        task: Its name, such as "worker 0".
        cluster: The digest of the addresses it was given.
        tasks: How many addresses these are.
        process: A random name of the process that speaks.
        host: The host's name.
        machine: A name that only processes on one host share.
        seconds: Its clock, in seconds since 1970.
        versions: By package, the installed version, or "" where it is missing.
        cpus: The CPUs that it may use.
        threads: How many threads TensorFlow will compute on.
        gpus: How many GPUs it will use; -1 where nobody knows.
        visible_gpus: Their names or indices on the host.
        shared_directory: The directory that all should see, or "".
        probe: The name of a file that it holds there, or "".
    """

    task: str
    cluster: str
    tasks: int
    process: str
    host: str
    machine: str
    seconds: float
    versions: dict[str, str]
    cpus: list[int]
    threads: int
    gpus: int
    visible_gpus: list[str]
    shared_directory: str = ""
    probe: str = ""


@dataclass(frozen=True)
class Message:
    """The one message there is, the same in both directions: to whom, and the sender's report."""

    receiver: str
    report: Report

    def encode(self) -> bytes:
        """The line to send."""
        return MAGIC + json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Message | None:
        """Reads a line; None when it is none of ours."""
        if not line.startswith(MAGIC) or not line.endswith(b"\n"):
            return None
        try:
            values = json.loads(line[len(MAGIC) :])
            receiver, told = values["receiver"], values["report"]
            if not isinstance(receiver, str) or not isinstance(told, dict):
                return None
            return cls(receiver, Report(**{name: _checked(name, told[name]) for name in _TYPES}))
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


_TYPES: dict[str, str] = {each.name: str(each.type) for each in fields(Report)}


def _checked(name: str, value: Any) -> Any:
    """Returns the value if it is of the type of that field.

    Raises:
        TypeError: If it is not.
    """
    well_typed = {
        "str": lambda: isinstance(value, str),
        "int": lambda: type(value) is int,
        "float": lambda: type(value) in (int, float),
        "list[int]": lambda: isinstance(value, list) and all(type(v) is int for v in value),
        "list[str]": lambda: isinstance(value, list) and all(isinstance(v, str) for v in value),
        "dict[str, str]": lambda: (
            isinstance(value, dict) and all(isinstance(v, str) for v in value.values())
        ),
    }[_TYPES[name]]()
    if not well_typed:
        raise TypeError(name)
    return value
