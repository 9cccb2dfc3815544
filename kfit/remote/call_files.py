"""The folder of one launch: the call that its tasks make, and what came of it.

    settings.json        how a task has to set itself up before it may read the call
    call                 the function and its arguments (`pickling`)
    result               what the function returned on the chief
    failure-G-NAME.json  what it raised in generation G on the task NAME

The folder is private to the user (mode 0700), made for one launch and removed with it.
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
"""What a task runs, with the folder and its own name as arguments."""


@dataclass(frozen=True)
class Settings:
    """How a task sets itself up.

    Attributes:
        chief: The name of the task whose result counts.
        path: `sys.path`: a task imports what the launching process would.
        argv: `sys.argv`.
        sources: The lines of code that is in no file, as of a notebook's cells, for tracebacks.
        loud: Whether a task prints what its function raised; else it is only noted.
        join: Whether a task joins its cluster before it makes the call.
    """

    chief: str
    path: Sequence[str]
    argv: Sequence[str]
    sources: dict[str, list[str]]
    loud: bool
    join: bool

    @classmethod
    def of_this_process(cls, chief: str, *, loud: bool, join: bool) -> Settings:
        """Returns settings by which a task is set up as this process is."""
        sources = {
            name: linecache.getlines(name)
            for name in list(linecache.cache)
            if not os.path.exists(name)
        }
        return cls(chief, list(sys.path), list(sys.argv), sources, loud, join)


@dataclass(frozen=True)
class ErrorRecord:
    """What a function raised on one task.

    Attributes:
        task: The task's name.
        generation: The generation it was of.
        time: When, by `time.time()`.
        summary: The type and the message, on one line or more.
        traceback: The text of the traceback, from the function on.
        is_result: Whether the function had returned, and what it returned could not travel.
        is_consequence: Whether another task's failure is behind it.
    """

    task: str
    generation: int
    time: float
    summary: str
    traceback: str
    is_result: bool = False
    is_consequence: bool = False


class CallFiles:
    """One folder as both ends see it.

    Args:
        folder: Its path; it is there.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def write(self, settings: Settings, call: bytes) -> None:
        """Puts down what the tasks are to do."""
        text = json.dumps(asdict(settings))
        (self.folder / "settings.json").write_text(text, encoding="utf-8")
        (self.folder / "call").write_bytes(call)

    def argv(self, task: str) -> tuple[str, ...]:
        """Returns the command line of a task of this host."""
        return (sys.executable, PROGRAM, str(self.folder), task)

    def settings(self) -> Settings:
        """Reads how to set up."""
        return Settings(**json.loads((self.folder / "settings.json").read_text(encoding="utf-8")))

    def call(self) -> bytes:
        """Reads what to call."""
        return (self.folder / "call").read_bytes()

    def put_result(self, result: bytes) -> None:
        """Notes what the function returned."""
        (self.folder / "result").write_bytes(result)

    def result(self) -> bytes | None:
        """Returns what the function returned; None if it did not return."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "result").read_bytes()
        return None

    def put_error(self, raised: ErrorRecord) -> None:
        """Notes what the function raised."""
        name = f"failure-{raised.generation}-{re.sub('[^a-z0-9]', '-', raised.task)}.json"
        (self.folder / name).write_text(json.dumps(asdict(raised)), encoding="utf-8")

    def errors(self, generation: int | None = None) -> list[ErrorRecord]:
        """Returns what was raised, in one generation or in all.

        The earliest comes first, and before all those that other tasks' failures are behind.
        """
        found = []
        for path in self.folder.glob("failure-*.json"):
            # A task that is killed while it writes has no more to say.
            with contextlib.suppress(ValueError, TypeError):
                found.append(ErrorRecord(**json.loads(path.read_text(encoding="utf-8"))))
        chosen = [one for one in found if generation in (None, one.generation)]
        return sorted(chosen, key=lambda one: (one.is_consequence, one.time))
