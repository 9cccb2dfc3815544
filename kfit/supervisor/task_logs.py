"""The log files of the tasks of a run: `kfit run --log-dir`.

Each task has one file with its whole output. When `worker-0.log` has grown large, it is renamed to
`worker-0.log.1`, the one before to `worker-0.log.2`, and so on; the oldest one is deleted. The
first line of each file says that kfit wrote it, and a file without that line is never touched.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from logging.handlers import RotatingFileHandler
from typing import IO, Any, Literal

from kfit.argument_checks import CommandError
from kfit.heartbeat.terminal import without_colors

LogFormat = Literal["text", "json"]
"""How lines are logged: as they are, or as JSON objects, one a line."""

LARGEST_FILE = 16 * 1024 * 1024
"""The size in bytes at which a log file is renamed, and a new one begins."""
OLD_FILES = 4
"""How many renamed files of a task are kept."""

_MARK = "kfit log of "
_OWN = "kfit"  # the stream of the lines that kfit adds
_LONGEST_MARK = 1000


class TaskLogs:
    """The folder in which each task of a run has a log file with its whole output.

    Args:
        folder: The folder; it is made if it does not exist.
        log_format: "text" for the lines as they are, "json" for objects with the keys `time` (in
            UTC), `task`, `stream` ("stdout", "stderr" or "kfit"), `attempt` and `text`.
        largest: The size in bytes at which a file is renamed.

    Attributes:
        folder: The absolute path of the folder.

    Raises:
        CommandError: If the folder cannot be made or written to.
    """

    def __init__(
        self, folder: str, log_format: LogFormat = "text", largest: int = LARGEST_FILE
    ) -> None:
        self.folder = os.path.abspath(folder)
        self._format = log_format
        self._largest = largest
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as error:
            raise CommandError(
                f"`--log-dir` is {folder!r}, which cannot be made: {error.strerror}; give a folder "
                "in which files can be written"
            ) from None
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise CommandError(
                f"`--log-dir` is {folder!r}, which cannot be written to; give another folder"
            )

    def open(self, name: str, attempt: int, say: Callable[[str], None]) -> TaskLog:
        """Opens the log of a task for one attempt of the run; earlier lines are kept.

        Args:
            name: The name of the task, such as "worker 0".
            attempt: The number of the attempt, from 1.
            say: A function that tells the user that the log could not be written.

        Raises:
            CommandError: If a file with the name of one of the task's log files was not written by
                kfit.
        """
        self.check(name)
        entry = _json_entry if self._format == "json" else _text_entry
        return TaskLog(self._path(name), name, attempt, entry, self._largest, say)

    def check(self, name: str) -> None:
        """Checks that the log files of a task can be written without the loss of another file.

        Args:
            name: The name of the task, such as "worker 0".

        Raises:
            CommandError: If a file with the name of one of them was not written by kfit.
        """
        first = self._path(name)
        for path in (first, *(f"{first}.{number}" for number in range(1, OLD_FILES + 1))):
            if os.path.lexists(path) and not _is_log(path):
                raise CommandError(
                    f"`--log-dir` is {self.folder!r}, whose file {os.path.basename(path)!r} kfit "
                    "did not write; move it away, or give another folder"
                )

    def _path(self, name: str) -> str:
        suffix = "jsonl" if self._format == "json" else "log"
        return os.path.join(self.folder, f"{name.replace(' ', '-')}.{suffix}")


class TaskLog:
    """The log of one task in one attempt of a run.

    If the log cannot be written, for example because the disk is full, training goes on: the user
    is told once.
    """

    def __init__(
        self,
        path: str,
        name: str,
        attempt: int,
        entry: Callable[[str, str, int, str], str],
        largest: int,
        say: Callable[[str], None],
    ) -> None:
        self._name = name
        self._attempt = attempt
        self._entry = entry
        self._lock = threading.Lock()
        mark = entry(name, _OWN, attempt, f"{_MARK}{name}")

        def fail(error: BaseException) -> None:
            say(f"the log {path} cannot be written: {error}; the run goes on without it")

        self._handler: _Handler | None = None
        try:
            self._handler = _Handler(path, mark, largest, fail)
        except OSError as error:
            fail(error)
        self.write(_OWN, f"attempt {attempt} begins, {_now()}")

    def write(self, stream: str, line: str) -> None:
        """Adds a line.

        Args:
            stream: "stdout" or "stderr".
            line: The line, without a line end; its colors are dropped.
        """
        with self._lock:
            if self._handler is not None:
                entry = self._entry(self._name, stream, self._attempt, without_colors(line))
                self._handler.emit(logging.makeLogRecord({"msg": entry}))

    def close(self) -> None:
        """Closes the file; further lines are dropped."""
        with self._lock:
            if self._handler is not None:
                self._handler.close()
            self._handler = None


class _Handler(RotatingFileHandler):
    """Python's handler of rotated files, which begins each file with a mark of kfit's.

    Args:
        path: The path of the newest file.
        mark: The first line of each file.
        largest: The size in bytes at which a file is renamed.
        fail: A function that is called with the first error of writing.
    """

    def __init__(
        self, path: str, mark: str, largest: int, fail: Callable[[BaseException], None]
    ) -> None:
        self._mark = mark
        self._fail: Callable[[BaseException], None] | None = fail
        super().__init__(
            path, maxBytes=largest, backupCount=OLD_FILES, encoding="utf-8", errors="replace"
        )

    def _open(self) -> Any:
        file: IO[str] = super()._open()
        if not file.tell():
            file.write(self._mark + "\n")
            file.flush()
        return file

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        fail, self._fail = self._fail, None
        error = sys.exc_info()[1]
        if fail is not None and error is not None:
            fail(error)


def _is_log(path: str) -> bool:
    if os.path.islink(path) or not os.path.isfile(path):
        return False
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return _MARK in file.readline(_LONGEST_MARK)
    except OSError:
        return False


def _now() -> str:
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")


def _text_entry(task: str, stream: str, attempt: int, text: str) -> str:
    return f"kfit: {text}" if stream == _OWN else text


def _json_entry(task: str, stream: str, attempt: int, text: str) -> str:
    entry = {"time": _now(), "task": task, "stream": stream, "attempt": attempt, "text": text}
    return json.dumps(entry, ensure_ascii=False)
