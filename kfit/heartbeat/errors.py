"""The error that a task failed with, noted for its supervisor.

When one task of a cluster fails, the others fail for it: they lose a peer, or are told that
another could not save. Whose process ends first is chance. So each task writes down what it failed
with, when that is raised, and the supervisor names the earliest error that is no mere consequence.
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
"""Classes of what a task raises because another one has failed; TensorFlow's by their names, since
nothing here imports it."""
# TensorFlow wraps what Python raises in a graph into an error of its own.
_CONSEQUENCE_WORDS = ("ExchangeError:", "Collective ops is aborted", "Connection reset by peer")
_LONGEST = 500


@dataclass(frozen=True)
class TaskError:
    """What a task failed with.

    Attributes:
        time: When it was first seen, by `time.time()`.
        summary: The class and the message, on one line.
        is_consequence: Whether another task's failure is behind it.
    """

    time: float
    summary: str
    is_consequence: bool

    @classmethod
    def of(cls, error: BaseException) -> TaskError:
        """Returns what to note of an error that was just raised."""
        lines = "".join(traceback.format_exception_only(type(error), error)).strip().splitlines()
        # That of a SyntaxError begins with the place.
        named = [line for line in lines if type(error).__name__ in line.partition(":")[0]]
        return cls(time.time(), (named or lines)[0][:_LONGEST], is_consequence(error))


def is_consequence(error: BaseException) -> bool:
    """Whether another task's failure is behind an error."""
    if any(cls.__name__ in _CONSEQUENCES for cls in type(error).__mro__):
        return True
    text = str(error)
    return any(words in text for words in _CONSEQUENCE_WORDS)


def error_path(heartbeat: str) -> str:
    """Returns where the error of the task with that heartbeat file is noted."""
    return f"{heartbeat}.error"


def write_error(heartbeat: str, error: TaskError) -> None:
    """Notes an error, in the place of the one before it."""
    path = error_path(heartbeat)
    # A supervisor that has gone took its folder with it, and a full disk must hide no error.
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(asdict(error), file)
        os.replace(f"{path}.new", path)


def read_error(heartbeat: str) -> TaskError | None:
    """Returns what the task with that heartbeat file has noted; None if nothing."""
    try:
        with open(error_path(heartbeat), encoding="utf-8") as file:
            return TaskError(**json.load(file))
    except (OSError, ValueError, TypeError):  # it has noted none, or not what we would
        return None
