"""The error that a task failed with, recorded for its supervisor.

A task is a process that trains, and the supervisor is the process that watches it (`kfit run`).
When one task of a cluster fails, the others fail as a consequence: they lose their connection to
it, or are told that it has failed. Which process ends first is a matter of chance. So each task
records its error when it is raised, and the supervisor reports the earliest error that is not a
mere consequence.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass

from kfit.heartbeat.summaries import message_of, summary_of

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
"""Names of the errors that a task raises because another task has failed. Classes of TensorFlow
are given by name, too, since this package does not import TensorFlow."""
_PERMANENT = frozenset({"SnapshotMismatchError", "SyntaxError"})
"""Names of the errors that the same program, started again, raises again."""
# When Python code in a graph raises an error, TensorFlow replaces it by an error of its own.
_CONSEQUENCE_WORDS = ("ExchangeError:", "Collective ops is aborted", "Connection reset by peer")
# With these words it is certain: TensorFlow's classes alone may also tell of a lost file server.
_CERTAIN = re.compile(r"\b(?:ExchangeError|PeerFailedError): (.+)")
_CERTAIN_WORDS = (*_CONSEQUENCE_WORDS, "coordination service", "failed to connect to all addresses")
NOT_THE_SAME = "The workers do not do the same"
"""Words of an `ExchangeError` that no other task's failure has caused: all of them are to blame."""
RESTARTS = "KFIT_RESTARTS"
"""The environment variable with how often in a row failed tasks are started again."""
_LONGEST = 500
_MORE = " ..."


@dataclass(frozen=True)
class TaskError:
    """The record of the error that a task (a process that trains) failed with.

    The task writes it to a file, which its supervisor (`kfit run`) reads.

    Attributes:
        time: When the error was recorded, as `time.time()`.
        summary: The class and the message of the error, on one line.
        is_consequence: Whether another task's failure caused the error.
        is_permanent: Whether it is certain that a restart would end by the same error.
    """

    time: float
    summary: str
    is_consequence: bool
    is_permanent: bool = False

    @classmethod
    def of(cls, error: BaseException) -> TaskError:
        """Returns the record of an error that has just been raised."""
        is_permanent = any(kind.__name__ in _PERMANENT for kind in type(error).__mro__)
        return cls(time.time(), _short_summary_of(error), is_consequence(error), is_permanent)


def is_consequence(error: BaseException) -> bool:
    """Returns whether an error was caused by the failure of another task (process) of the cluster.

    The result depends on the class of the error, and on certain words in its message.
    """
    if any(cls.__name__ in _CONSEQUENCES for cls in type(error).__mro__):
        return True
    text = message_of(error)
    return any(words in text for words in _CONSEQUENCE_WORDS)


def is_surely_consequence(error: BaseException) -> bool:
    """Returns whether nothing but another task's failure can have caused an error.

    For such an error its traceback does not help. `is_consequence` is also true of errors that
    TensorFlow raises if, for example, a file system is not available.
    """
    text = f"{type(error).__name__}: {message_of(error)}"
    words = any(words in text for words in _CERTAIN_WORDS)
    return is_consequence(error) and (words or _CERTAIN.search(text) is not None)


def reason_of(error: BaseException) -> str:
    """Returns in one line what an error that another task's failure has caused says of it.

    TensorFlow's own error, around an error in a graph, has the text of a long traceback.
    """
    inner = _CERTAIN.search(f"{type(error).__name__}: {message_of(error)}")
    return inner[1] if inner else _short_summary_of(error)


def told_as_consequence(error: BaseException) -> str:
    """Returns the line that a task prints for an error that another task's failure has caused."""
    return f"kfit: this task fails because another one has: {reason_of(error)}"


def _short_summary_of(error: BaseException) -> str:
    text = summary_of(error)
    if len(text) <= _LONGEST:
        return text
    cut = text[: _LONGEST - len(_MORE)]
    words = cut.rpartition(" ")[0]
    return (words if len(words) > len(cut) / 2 else cut) + _MORE


def chain(error: BaseException | None) -> list[BaseException]:
    """Returns an error and all errors that it was raised from, in a list."""
    found: list[BaseException] = []
    while error is not None and all(error is not each for each in found):
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def mark(error: BaseException, name: str, value: object = True) -> None:
    """Sets an attribute of an error, whatever its class says of its attributes.

    Args:
        error: The error, which may be a frozen dataclass.
        name: The name of the attribute.
        value: Its value.
    """
    BaseException.__setattr__(error, name, value)


def is_marked(error: BaseException, name: str) -> bool:
    """Returns whether `mark` has set an attribute of an error."""
    return name in vars(error)


def error_path(heartbeat: str) -> str:
    """Returns the path of the file to which a task writes the error that it failed with.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
    """
    return f"{heartbeat}.error"


def write_error(heartbeat: str, error: TaskError) -> None:
    """Writes the error that this task failed with to a file, for its supervisor (`kfit run`).

    An earlier error is replaced. If the file cannot be written, nothing is raised, since that would
    hide the task's own error.

    Args:
        heartbeat: The path of the file by which the task reports its progress to its supervisor.
            The path of the error file is made from it.
        error: The record of the error.
    """
    path = error_path(heartbeat)
    # The supervisor may have ended and removed the folder, or the disk may be full. An error of
    # writing must not replace the task's own error.
    with contextlib.suppress(OSError):
        with open(f"{path}.new", "w", encoding="utf-8") as file:
            json.dump(asdict(error), file)
        os.replace(f"{path}.new", path)


def read_error(heartbeat: str) -> TaskError | None:
    """Returns the error that a task failed with; None if the task has recorded no error.

    The supervisor (`kfit run`), which watches the task, calls it. A malformed record counts as
    none.

    Args:
        heartbeat: The path of the file by which the task reports its progress. The path of the
            error file is made from it.
    """
    try:
        with open(error_path(heartbeat), encoding="utf-8") as file:
            return TaskError(**json.load(file))
    except (OSError, ValueError, TypeError):  # there is no file, or it is malformed
        return None
