"""The heartbeat files of the tasks of a run, as their supervisor uses them.

A heartbeat file is a small file to which a task writes its progress (see `kfit.heartbeat`). The
supervisor reads the file to detect that the task hangs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kfit.heartbeat import VARIABLE, HeartbeatReader, Pulse, TaskError, read_error
from kfit.heartbeat.errors import error_path
from kfit.heartbeat.layout import SAMPLE_INTERVAL
from kfit.heartbeat.stop_notes import read_stop_note, stop_note_path
from kfit.heartbeat.unconfirmed_ends import ends_path, read_ends
from kfit.heartbeat.unprinted import Unprinted, raised_path, read_unprinted, unprinted_path

# A file system in memory. On a disk, a store to a mapped page that is being written back waits for
# the disk, so a task would pause whenever another program writes a lot.
_MEMORY = "/dev/shm"
# The bytes that must be free there: those of 256 tasks.
_ROOM = 1 << 20


def heartbeat_root() -> str | None:
    """Returns a folder in memory for heartbeat files, since writing to a disk could delay a task.

    The result is None if the system has no such folder, or no room is left in it; then its
    temporary folder is used.
    """
    try:
        with tempfile.TemporaryFile(dir=_MEMORY) as file:
            file.write(bytes(_ROOM))
    except OSError:
        return None
    return _MEMORY


class HeartbeatFiles:
    """The heartbeat files of one attempt of a run: a file for each task, with the task's progress.

    Args:
        folder: The supervisor's own folder for such files; it is made if it does not exist.
        generation: The number of the attempt, which is a part of the files' names.
        names: The names of the tasks.
        sample_interval: Seconds between two looks of a task at its own state, such as its use of
            CPUs.
    """

    def __init__(
        self,
        folder: str,
        generation: int,
        names: Sequence[str],
        sample_interval: float = SAMPLE_INTERVAL,
    ) -> None:
        # The folder may be missing: on some systems a logout deletes the user's files in memory
        # while tasks still train.
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._readers = {
            name: HeartbeatReader(os.path.join(folder, f"{generation}-{index}"), sample_interval)
            for index, name in enumerate(names)
        }

    def environment(self, name: str) -> dict[str, str]:
        """Returns the environment variables that give a task the path of its heartbeat file."""
        return {VARIABLE: self._readers[name].path}

    def pulse(self, name: str) -> Pulse:
        """Returns the latest heartbeat (report of progress) of a task, which may have ended."""
        return self._readers[name].read()

    def error(self, name: str) -> TaskError | None:
        """Returns the error that a task has recorded; None if it has recorded none."""
        return read_error(self._readers[name].path)

    def stop_note(self, name: str) -> str:
        """Returns what a task has saved when a signal stopped it; empty if it told nothing."""
        return read_stop_note(self._readers[name].path)

    def unconfirmed_ends(self) -> list[str]:
        """Returns the files to delete when all tasks have succeeded (`unconfirmed_ends.py`)."""
        return [path for reader in self._readers.values() for path in read_ends(reader.path)]

    def unprinted(self, name: str) -> Unprinted | None:
        """Returns the traceback that a task has not printed; None if there is none."""
        return read_unprinted(self._readers[name].path)

    def close(self) -> None:
        """Removes the heartbeat files, and the files of the errors that the tasks recorded."""
        for reader in self._readers.values():
            reader.close()
            for path in (
                reader.path,
                error_path(reader.path),
                stop_note_path(reader.path),
                ends_path(reader.path),
                unprinted_path(reader.path),
                raised_path(reader.path),
            ):
                with contextlib.suppress(OSError):
                    os.remove(path)


def is_stopped(pid: int) -> bool:
    """Returns whether a signal such as SIGSTOP has suspended a process.

    The result is always False on systems without `/proc`.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    # The program's name, in parentheses, may contain any characters.
    return stat.rpartition(")")[2].split()[:1] == ["T"]


def ask_for_stacks(pid: int, session: int) -> bool:
    """Asks a task to write the stacks of its threads to its stderr, to show where the task hangs.

    Args:
        pid: The process that reports the progress of the task.
        session: The session in which the task was started. A process of another session is not
            asked, since it does not belong to the task.

    Returns:
        Whether the process was asked.
    """
    try:
        if os.getsid(pid) != session:
            return False
        os.kill(pid, signal.SIGUSR2)
    except OSError:
        return False
    return True
