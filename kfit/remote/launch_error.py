"""The error of a launch that has failed."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """A launch has failed; the message has the traceback of the task that failed first.

    Attributes:
        task: That task's name, as `worker 1`; empty if none could be started.
        summary: The type and message of what it raised, or how else it ended.
        traceback: The text of the traceback on that task; empty if it raised nothing.
    """

    def __init__(self, message: str, *, task: str = "", summary: str, traceback: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.summary = summary
        self.traceback = traceback
