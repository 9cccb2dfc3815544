"""The folder of one launch: the function call that the tasks make, its result and its errors.

    settings.json        how a task sets up its process before it unpickles the call
    call                 the function and its arguments (`pickling`)
    result               the function's return value on the chief
    failure-G-NAME.json  the error that the function raised in generation G on the task NAME

The folder is private to the user (mode 0700). It is created for one launch and removed at its end.
A generation is the tasks of one attempt of the launch; a restart is the next generation.
"""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_call.py")
"""The script that a task runs, with the folder and the task's name as arguments."""


@dataclass(frozen=True)
class Settings:
    """The settings by which a task sets up its process.

    Attributes:
        chief: The name of the task whose result is returned.
        path: `sys.path`, so that a task imports the same modules as the launching process.
        argv: `sys.argv` of the launching process.
        sources: The lines of code that is in no file, such as a notebook's cells, for tracebacks.
            The keys are the names under which the code was compiled.
        loud: Whether a task prints the error that its function raised. It is recorded in any case.
        join: Whether a task joins its cluster before it calls the function.
    """

    chief: str
    path: Sequence[str]
    argv: Sequence[str]
    sources: dict[str, list[str]]
    loud: bool
    join: bool

    @classmethod
    def of_this_process(cls, chief: str, *, loud: bool, join: bool) -> Settings:
        """Returns settings that give a task the `sys.path`, `sys.argv` and sources of this process.

        The arguments are described as attributes of the class.
        """
        sources = {
            name: linecache.getlines(name)
            for name in list(linecache.cache)
            if not os.path.exists(name)
        }
        return cls(chief, list(sys.path), list(sys.argv), sources, loud, join)


@dataclass(frozen=True)
class ErrorRecord:
    """The record of an error that the function raised on one task.

    Attributes:
        task: The task's name.
        generation: The number of the generation in which it was raised.
        time: The time of the error, by `time.time()`.
        summary: The error's type and message, on one line or more.
        traceback: The text of the traceback, starting at the function's own frame.
        is_result: Whether the function returned normally, but its result could not be pickled.
        is_consequence: Whether the error was caused by the failure of another task.
    """

    task: str
    generation: int
    time: float
    summary: str
    traceback: str
    is_result: bool = False
    is_consequence: bool = False


class CallFiles:
    """The files of one launch, for the launching process and for its tasks.

    Args:
        folder: The path of the folder, which exists.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def write(self, settings: Settings, call: bytes) -> None:
        """Writes the settings, and the call as `pickling.pack_call` returned it."""
        text = json.dumps(asdict(settings))
        (self.folder / "settings.json").write_text(text, encoding="utf-8")
        (self.folder / "call").write_bytes(call)

    def argv(self, task: str) -> tuple[str, ...]:
        """Returns the command line of a task on this host, by the task's name."""
        return (sys.executable, PROGRAM, str(self.folder), task)

    def settings(self) -> Settings:
        """Reads the settings by which a task sets up its process."""
        return Settings(**json.loads((self.folder / "settings.json").read_text(encoding="utf-8")))

    def call(self) -> bytes:
        """Reads the pickled call."""
        return (self.folder / "call").read_bytes()

    def put_result(self, result: bytes) -> None:
        """Writes the pickled result of the function."""
        (self.folder / "result").write_bytes(result)

    def result(self) -> bytes | None:
        """Reads the pickled result of the function; None if there is no result."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "result").read_bytes()
        return None

    def put_error(self, raised: ErrorRecord) -> None:
        """Writes the record of an error."""
        name = f"failure-{raised.generation}-{re.sub('[^a-z0-9]', '-', raised.task)}.json"
        (self.folder / name).write_text(json.dumps(asdict(raised)), encoding="utf-8")

    def errors(self, generation: int | None = None) -> list[ErrorRecord]:
        """Reads the records of the errors in one generation, or in all of them (None).

        Returns:
            The records in order of time, but errors that other tasks' failures caused come last.
        """
        found = []
        for path in self.folder.glob("failure-*.json"):
            # A task that was killed while it wrote its record leaves an incomplete file.
            with contextlib.suppress(ValueError, TypeError):
                found.append(ErrorRecord(**json.loads(path.read_text(encoding="utf-8"))))
        chosen = [one for one in found if generation in (None, one.generation)]
        return sorted(chosen, key=lambda one: (one.is_consequence, one.time))
