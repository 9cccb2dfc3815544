"""The error that `kfit.launch` raises if the launch has failed."""

from __future__ import annotations


class LaunchError(RuntimeError):
    """The error that `kfit.launch` raises if the launch has failed, with the cause of the failure.

    Attributes:
        task: The name of the worker that failed first, such as "worker 1"; empty if none has
            failed, such as when no worker could be started.
        summary: The type and message of the error that this worker raised. If it ended without an
            error, such as by a signal, a text that says how.
        traceback: The text of the traceback of this error; empty if there was no error.
    """

    def __init__(self, message: str, *, task: str = "", summary: str, traceback: str = "") -> None:
        super().__init__(message)
        self.task = task
        self.summary = summary
        self.traceback = traceback
