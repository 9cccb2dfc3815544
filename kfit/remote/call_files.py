"""The folder of one launch: the function call that the tasks make, its result and its errors.

    settings.json        how a task sets up its process before it unpickles the call
    call                 the function and its arguments, pickled
    result               the function's return value on the chief
    failure-G-NAME.json  the error that the function raised in generation G on the task NAME

Here a launch is one call of `kfit.launch`, and a task is one of the worker processes that it has
started. All workers of one attempt are a generation; a restart of the workers is the next
generation. The folder is private to the user (mode 0700), and is removed at the end of the launch.
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
    """What a worker of a launch must know before it calls the user's function.

    With most of these settings the worker's process becomes similar to the launching process, the
    one that has called `kfit.launch`.

    Attributes:
        chief: The name of the worker whose result `kfit.launch` returns.
        path: `sys.path` of the launching process, so that a worker imports the same modules.
        argv: `sys.argv` of the launching process.
        sources: The lines of code that is in no file, such as a notebook's cells. A worker needs
            them for tracebacks. The keys are the names under which the code was compiled.
        loud: Whether a worker prints the error that the function raises. The error is also recorded
            in a file, whether it is printed or not.
        join: Whether a worker joins its cluster before it calls the function.
    """

    chief: str
    path: Sequence[str]
    argv: Sequence[str]
    sources: dict[str, list[str]]
    loud: bool
    join: bool

    @classmethod
    def of_this_process(cls, chief: str, *, loud: bool, join: bool) -> Settings:
        """Returns settings with the `sys.path`, the `sys.argv` and the source code of this process.

        The source code is that of code which is in no file, such as the cells of a notebook. It is
        called in the process that has called `kfit.launch`. The arguments are described as
        attributes of the class.
        """
        sources = {
            name: linecache.getlines(name)
            for name in list(linecache.cache)
            if not os.path.exists(name)
        }
        return cls(chief, list(sys.path), list(sys.argv), sources, loud, join)


@dataclass(frozen=True)
class ErrorRecord:
    """The record of an error that the launched function has raised on one worker.

    Attributes:
        task: The name of the worker.
        generation: The number of the attempt in which the error was raised: 0 at first, and 1 more
            after each restart of the workers.
        time: The time of the error, by `time.time()`.
        summary: The error's type and message, on one line or more.
        line: The error's type and its reason, on one line.
        traceback: The text of the traceback, which begins at the launched function; empty if
            `is_result` is True.
        is_result: Whether the function returned normally, but its result could not be pickled.
        is_consequence: Whether the error was only caused by the failure of another worker.
        is_printed: Whether the worker has printed the traceback.
    """

    task: str
    generation: int
    time: float
    summary: str
    line: str
    traceback: str
    is_result: bool = False
    is_consequence: bool = False
    is_printed: bool = False


class CallFiles:
    """The files by which `kfit.launch` and the workers that it starts exchange data.

    They contain the function call that the workers make, its result and its errors.

    Args:
        folder: The path of the folder of these files, which must exist.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    def write(self, settings: Settings, call: bytes) -> None:
        """Writes the files that the workers read before they call the function.

        Args:
            settings: What the workers must know about the launching process.
            call: The pickled function with its arguments, as `pickling.pack_call` returned it.
        """
        text = json.dumps(asdict(settings))
        (self.folder / "settings.json").write_text(text, encoding="utf-8")
        (self.folder / "call").write_bytes(call)

    def argv(self, task: str) -> tuple[str, ...]:
        """Returns the command line that starts the worker with the name `task` on this host."""
        return (sys.executable, PROGRAM, str(self.folder), task)

    def settings(self) -> Settings:
        """Reads the settings that `write` has written; called in a worker."""
        return Settings(**json.loads((self.folder / "settings.json").read_text(encoding="utf-8")))

    def call(self) -> bytes:
        """Reads the pickled function and its arguments; called in a worker."""
        return (self.folder / "call").read_bytes()

    def put_result(self, result: bytes) -> None:
        """Writes the pickled result that the function has returned on the chief."""
        (self.folder / "result").write_bytes(result)

    def result(self) -> bytes | None:
        """Reads the pickled result of the function; None if there is no result."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "result").read_bytes()
        return None

    def forget_result(self) -> None:
        """Deletes the result of an earlier attempt, before the workers are started again."""
        (self.folder / "result").unlink(missing_ok=True)

    def put_error(self, raised: ErrorRecord) -> None:
        """Writes the record of an error that the function has raised on a worker."""
        name = f"failure-{raised.generation}-{re.sub('[^a-z0-9]', '-', raised.task)}.json"
        (self.folder / name).write_text(json.dumps(asdict(raised)), encoding="utf-8")

    def errors(self, generation: int | None = None) -> list[ErrorRecord]:
        """Reads the records of the errors that the function has raised on the workers.

        Args:
            generation: The number of the attempt whose errors are read; None for those of all
                attempts.

        Returns:
            The records in the order of their times, but all errors that were only caused by the
            failure of another worker come last.
        """
        found = []
        for path in self.folder.glob("failure-*.json"):
            # A task that was killed while it wrote its record leaves an incomplete file.
            with contextlib.suppress(ValueError, TypeError):
                found.append(ErrorRecord(**json.loads(path.read_text(encoding="utf-8"))))
        chosen = [one for one in found if generation in (None, one.generation)]
        return sorted(chosen, key=lambda one: (one.is_consequence, one.time))
