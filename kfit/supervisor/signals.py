"""Lets the supervisor of a run handle the signals that its process gets, while the run lasts."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from kfit.heartbeat.signal_handlers import TemporaryHandlers

# Slurm's users commonly choose SIGUSR1 as the signal that announces the end of a job.
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)

PREEMPTIONS = (signal.SIGTERM, signal.SIGUSR1)
"""The signals by which a platform announces that it will take the machine away (preemption)."""


@contextlib.contextmanager
def signals_to(put: Callable[[int], None]) -> Iterator[None]:
    """Context in which SIGINT, SIGTERM, SIGHUP and SIGUSR1 do not end the process, but call `put`.

    So the supervisor of a run survives the signal, and can stop its tasks. A process that is forked
    meanwhile handles signals as before. A signal that the process ignores stays ignored. Outside of
    the main thread the context has no effect, since Python handles signals only in the main thread.

    Args:
        put: A function that is called with the number of each signal, from a signal handler.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: FrameType | None) -> None:
        put(signum)

    with TemporaryHandlers(handle) as handlers:
        for signum in FORWARDED:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                handlers.take(signum)
        yield


@contextlib.contextmanager
def exit_codes_kept() -> Iterator[None]:
    """Context in which the system keeps the exit codes of child processes until they are read.

    It does not if this process ignores SIGCHLD, as a process does whose parent has ignored it. A
    process that waits for a child then waits for all children, and learns no exit code.

    Raises:
        RuntimeError: If this process ignores SIGCHLD, and this is not the main thread: only there
            can Python change that.
    """
    if signal.getsignal(signal.SIGCHLD) is not signal.SIG_IGN:
        yield
        return
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "This process ignores SIGCHLD, so it cannot learn how the tasks end. Call "
            "`signal.signal(signal.SIGCHLD, signal.SIG_DFL)` in the main thread first."
        )
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def signal_name(signum: int) -> str:
    """Returns the name of a signal, such as "SIGTERM" for 15."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"
