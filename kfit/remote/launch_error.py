"""The error that `kfit.launch` raises if the launch has failed."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """The error that `kfit.launch` raises if the launch has failed, with the cause of the failure.

    Attributes:
        task: The name of the worker with which the failure began, such as "worker 1"; empty if it
            began with no worker, such as when no worker could be started.
        summary: The cause of the failure, such as the type and message of the error that the
            function raised on this worker, or how the worker ended if it recorded no error.
        traceback: The text of the traceback of the function's error; empty if there is none.
    """

    def __init__(self, message: str, *, task: str = "", summary: str, traceback: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.summary = summary
        self.traceback = traceback
