"""The heartbeats of one generation of tasks, as their supervisor sees them."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from kfit.heartbeat import VARIABLE, HeartbeatReader, Pulse, TaskError, read_error
from kfit.heartbeat.errors import error_path
from kfit.heartbeat.layout import SAMPLE_INTERVAL

# Where files are never written to a disk: a store to a mapped page that is just being written back
# waits for the disk, so a task would pause for the snapshot of another program.
_MEMORY = "/dev/shm"


def heartbeat_root() -> str | None:
    """Returns where to make a folder for heartbeats; None for where temporary files belong."""
    return _MEMORY if os.access(_MEMORY, os.W_OK | os.X_OK) else None


class HeartbeatFiles:
    """One heartbeat file a task.

    Args:
        folder: Where to make them; the supervisor's own, which is made when it is not there.
        generation: The number of the generation; each has files of its own.
        names: The names of the tasks.
        sample_interval: Seconds between two looks of a task at itself.
    """

    def __init__(
        self,
        folder: str,
        generation: int,
        names: Sequence[str],
        sample_interval: float = SAMPLE_INTERVAL,
    ) -> None:
        # Where logging out ends what a user has in memory, the folder goes while tasks train on.
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._readers = {
            name: HeartbeatReader(os.path.join(folder, f"{generation}-{index}"), sample_interval)
            for index, name in enumerate(names)
        }

    def environment(self, name: str) -> dict[str, str]:
        """Returns the variables by which a task finds its heartbeat."""
        return {VARIABLE: self._readers[name].path}

    def pulse(self, name: str) -> Pulse:
        """Returns what a task last wrote; a dead one's pulse is that of its last moment."""
        return self._readers[name].read()

    def error(self, name: str) -> TaskError | None:
        """Returns what a task noted that it failed with; None if nothing."""
        return read_error(self._readers[name].path)

    def close(self) -> None:
        """Removes the files."""
        for reader in self._readers.values():
            reader.close()
            for path in (reader.path, error_path(reader.path)):
                with contextlib.suppress(OSError):
                    os.remove(path)


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped a process, as far as the system tells (Linux does)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    # The program's name, in parentheses, may hold anything.
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def ask_for_stacks(pid: int, session: int) -> bool:
    """Has a task write the stacks of its threads to its stderr.

    Args:
        pid: The process that beats.
        session: The session of the task, so that no process of others is ever signalled.

    Returns:
        Whether it was asked.
    """
    try:
        if os.getsid(pid) != session:
            return False
        os.kill(pid, signal.SIGUSR2)
    except OSError:
        return False
    return True
