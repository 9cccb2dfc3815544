"""Kills the tasks that are left when their supervisor is killed.

A supervisor that gets SIGKILL cannot stop its tasks. Linux then kills the tasks themselves, but not
the processes that the tasks have started; macOS kills none of them. So a second, small process, the
reaper, reads from a pipe that only the supervisor holds open: processes that are forked from it
close their copy. When that pipe closes, the reaper kills all process groups that the supervisor has
registered, and removes the supervisor's temporary folders. The reaper is not a child of the
supervisor: whoever kills the supervisor with all its children, as Ray does, does not find it. This
file is also the reaper's program, which runs without kfit.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import IO

_FAREWELL = "the supervisor lives\n"
_started: weakref.WeakSet[Reaper] = weakref.WeakSet()
"""The reapers of this process."""


def _close_in_child() -> None:
    """Closes the pipes to the reapers in a process that was just forked.

    Otherwise a reaper would not notice that the supervisor is killed while this process lives.
    """
    for reaper in list(_started):
        reaper.close()


os.register_at_fork(after_in_child=_close_in_child)


class Reaper:
    """The supervisor's connection to the reaper, which kills the tasks if the supervisor is killed.

    The reaper is a process. Creating the object starts it, and leaving the object's context ends
    it.

    Args:
        *folders: Folders to remove, with all that is in them, if the supervisor is killed. If the
            supervisor ends in another way, it removes the folders itself.
    """

    def __init__(self, *folders: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # A buffer has a lock, which another thread may hold when a process is forked.
            bufsize=0,
            # So that neither Ctrl-C nor a kill of the supervisor's process group reaches it.
            start_new_session=True,
            cwd="/",
        )
        _started.add(self)
        self._process.wait()  # it has started the reaper, and ends

    def __enter__(self) -> Reaper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tell(_FAREWELL)
        self.close()
        assert self._process.stdout is not None
        with self._process.stdout as ended:
            ended.read()  # the reaper writes nothing, so this returns when it has ended

    def close(self) -> None:
        """Closes this process's end of the pipe, without a farewell; further calls do nothing."""
        with contextlib.suppress(OSError):
            self._pipe.close()

    def add(self, group: int) -> None:
        """Registers the process group of a task, to be killed if the supervisor is killed."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Unregisters a process group that has ended, since a new group may get its number."""
        self._tell(f"-{group}\n")

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _tell(self, line: str) -> None:
        # If the reaper has died, the supervisor continues without it.
        with contextlib.suppress(OSError, ValueError):
            self._pipe.write(line.encode())


def watch(lines: IO[str], folders: Sequence[str]) -> None:
    """Runs the reaper: waits until the supervisor ends, and kills the process groups that are left.

    Args:
        lines: The pipe from the supervisor. Each line is `+` or `-`, to register or unregister, and
            the number of a process group. The last line is a farewell, unless the supervisor was
            killed. Nothing is read after it: another process may still hold the pipe open.
        folders: Folders to remove at the end, with what is in them, unless there was a farewell.
    """
    groups: set[int] = set()
    for line in lines:
        if line == _FAREWELL:
            folders = ()
            break
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)  # so that the reaper is nobody's child
    watch(sys.stdin, sys.argv[1:])
