"""The error of a launch that has failed."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """The error of a launch that has failed, with the traceback of the task that failed first.

    Attributes:
        task: The name of the task that failed first, such as `worker 1`; empty if no task could be
            started.
        summary: The type and message of the task's error, or how it ended without one.
        traceback: The text of the task's traceback; empty if it raised no error.
    """

    def __init__(self, message: str, *, task: str = "", summary: str, traceback: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.summary = summary
        self.traceback = traceback
