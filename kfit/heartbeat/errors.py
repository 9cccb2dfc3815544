"""The error that a task failed with, recorded for its supervisor.

When one task of a cluster fails, the others fail as a consequence: they lose a peer, or are
notified that another task could not save. Which process ends first is a matter of chance. So each
task records its error when it is raised, and the supervisor reports the earliest error that is not
a mere consequence.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
import traceback
from dataclasses import asdict, dataclass

_CONSEQUENCES = frozenset(
    {
        "PeerFailedError",
        "ExchangeError",
        "AbortedError",
        "CancelledError",
        "DeadlineExceededError",
        "UnavailableError",
    }
)
"""Names of the classes of errors that a task raises because another task has failed. TensorFlow's
are matched by name, since this package does not import it."""
# When Python code in a graph raises an error, TensorFlow replaces it by an error of its own.
_CONSEQUENCE_WORDS = ("ExchangeError:", "Collective ops is aborted", "Connection reset by peer")
_LONGEST = 500


@dataclass(frozen=True)
class TaskError:
    """The error that a task failed with.

    Attributes:
        time: When it was recorded, by `time.time()`.
        summary: The class and the message, on one line.
        is_consequence: Whether another task's failure caused it.
    """

    time: float
    summary: str
    is_consequence: bool

    @classmethod
    def of(cls, error: BaseException) -> TaskError:
        """Returns the record of an error that has just been raised."""
        lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
        # For a SyntaxError, Python first prints the file and the line.
        named = [line for line in lines if type(error).__name__ in line.partition(":")[0]]
        return cls(time.time(), (named or lines)[0][:_LONGEST], is_consequence(error))


def is_consequence(error: BaseException) -> bool:
    """Returns whether another task's failure caused an error.

    This is recognized by the error's class, or by words in its message.
    """
    if any(cls.__name__ in _CONSEQUENCES for cls in type(error).__mro__):
        return True
    text = str(error)
    return any(words in text for words in _CONSEQUENCE_WORDS)


def error_path(heartbeat: str) -> str:
    """Returns the path of the error file that belongs to a heartbeat file."""
    return f"{heartbeat}.error"


def write_error(heartbeat: str, error: TaskError) -> None:
    """Writes the error file of a heartbeat file, replacing an earlier error.

    If the file cannot be written, nothing is raised.
    """
    path = error_path(heartbeat)
    # The supervisor may have ended and removed the folder, or the disk may be full. An error of
    # writing must not replace the task's own error.
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(asdict(error), file)
        os.replace(f"{path}.new", path)


def read_error(heartbeat: str) -> TaskError | None:
    """Reads the error file of a heartbeat file; returns None if it is missing or malformed."""
    try:
        with open(error_path(heartbeat), encoding="utf-8") as file:
            return TaskError(**json.load(file))
    except (OSError, ValueError, TypeError):  # there is no file, or it is malformed
        return None
