"""A process that makes batches of a PyDataset, as its parent sees it.

A pipe leads from the parent to each process. The parent sends the pickled data set with the index
of a batch, and gets the batch, or what went wrong. Nothing else holds an end of the pipe. So the
parent notices a process that has died, even in the middle of a batch, and a process whose parent
has gone ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any

from kfit.inputs.batch_process import Failure, Task, serve
from kfit.supervisor.signals import FORWARDED, signal_name

# Seconds between two looks whether the process still lives. The end of the pipe tells it sooner,
# unless a process that was forked meanwhile holds the pipe, too.
_LOOK_EVERY = 0.5
# Seconds until a process whose end of the pipe is closed has an exit code.
_EXIT = 10.0


class _OtherProcessError(Exception):
    """The cause of an error of another process; its text is the traceback there."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


class BatchMaker:
    """A process that makes batches, as its parent sees it.

    Args:
        safe_path: The value of the environment variable `PYTHONSAFEPATH` in the process, once it
            has started.
    """

    def __init__(self, safe_path: str | None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(other, os.getpid(), safe_path))
        # This may start a process of Python's own, which changes the mask of signals (up to Python
        # 3.12 without restoring it), so it must not happen within the context.
        resource_tracker.ensure_running()
        with _stops_blocked():
            self._process.start()
        other.close()

    def make(self, task: Task, of: str) -> Any:
        """Makes a batch in the process, and waits for it.

        Args:
            task: The batch to make.
            of: The argument of `fit` and the class of the data set, for messages.

        Raises:
            Exception: The error that `__getitem__` has raised, if it can be pickled.
            RuntimeError: If it can't, if the batch can't be pickled, or if the process has died.
        """
        try:
            self._connection.send(task)
            answer = self._receive()
        except (EOFError, OSError) as error:
            raise RuntimeError(
                f"{of}: a process that makes its batches has died while it made batch "
                f"{task.index}. {self._why()}"
            ) from error
        made, batch = pickle.loads(answer)  # noqa: S301  written by our own process, for us
        if made:
            return batch
        raise _error(batch, of)

    def hang_up(self) -> None:
        """Lets the process end, which must not be making a batch."""
        self._connection.close()

    def join(self) -> None:
        """Waits until the process has ended."""
        self._process.join()

    def _receive(self) -> bytes:
        while not self._connection.poll(_LOOK_EVERY):
            if not self._process.is_alive() and not self._connection.poll():
                raise EOFError
        return self._connection.recv_bytes()

    def _why(self) -> str:
        """Returns in words why the process has died, and what to do."""
        self._process.join(_EXIT)
        code = self._process.exitcode
        see = "Pass use_multiprocessing=False to the data set to see the error in this process"
        if code is None:
            return f"Its connection was lost: `__getitem__` may have closed files. {see}."
        if code >= 0:
            return (
                f"It has ended with exit code {code}, as `os._exit({code})` in `__getitem__` ends "
                f"it; what it printed may say more. {see}."
            )
        name = signal_name(-code)
        if -code == signal.SIGKILL:
            return (
                f"{name} ended it: it was killed, perhaps since the memory was used up. Use fewer "
                "`workers`, since each process holds a copy of the data set, or less memory for "
                f"each batch. {see}."
            )
        return f"{name} ended it, as after a crash in native code. {see}."


@contextmanager
def _stops_blocked() -> Iterator[None]:
    """A context in which new processes do not get the signals that stop a `fit`, until they ask.

    A process inherits the mask of the thread that starts it. Other threads of this process still
    get the signals.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _error(failure: Failure, of: str) -> Exception:
    """Returns the error to raise in this process for one of the other process."""
    error: Exception
    if failure.packed is None:
        error = RuntimeError(f"{of}: {failure.text}")
    else:
        error = pickle.loads(failure.packed)  # noqa: S301  written by our own process, for us
    error.__cause__ = _OtherProcessError(failure.lines)
    return error
