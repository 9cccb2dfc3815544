"""End what is left of the tasks when their supervisor was killed.

A supervisor that gets SIGKILL can stop nobody. Linux then kills its children, if they asked for
it, but not the processes that those have started; macOS kills none. So a second, tiny process
waits at the end of a pipe that only the supervisor holds. When that pipe breaks it kills the
process groups it was told of, and removes the supervisor's temporary folders. This file is that
process's program as well: it runs alone, without kfit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import IO

_FAREWELL = "the supervisor lives\n"


class Reaper:
    """The supervisor's end: tells the watching process which process groups to end with it.

    Args:
        *folders: Folders of files to be removed when the supervisor is killed. One that ends in
            another way removes its own.
    """

    def __init__(self, *folders: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *folders],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Out of reach of the terminal's Ctrl-C and of whoever kills the supervisor's group.
            start_new_session=True,
            cwd="/",
        )

    def __enter__(self) -> Reaper:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._tell(_FAREWELL)
        with contextlib.suppress(OSError):
            self._pipe.close()
        self._process.wait()

    def add(self, group: int) -> None:
        """Has the process group `group` killed when the supervisor dies."""
        self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        """Takes back `add`; its number may soon belong to somebody else."""
        self._tell(f"-{group}\n")

    @property
    def _pipe(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    def _tell(self, line: str) -> None:
        # Without its reaper, a supervisor still does all it can do itself.
        with contextlib.suppress(OSError, ValueError):
            self._pipe.write(line.encode())
            self._pipe.flush()


def watch(lines: IO[str], folders: Sequence[str]) -> None:
    """Keeps book of process groups until the pipe breaks, then kills those that are left.

    Args:
        lines: `+` or `-` and the number of a process group; a farewell at last, unless the
            supervisor was killed.
        folders: What to remove in the end, with the files in it.
    """
    groups: set[int] = set()
    for line in lines:
        if line == _FAREWELL:
            folders = ()
            continue
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                os.remove(os.path.join(folder, name))
            os.rmdir(folder)


if __name__ == "__main__":
    watch(sys.stdin, sys.argv[1:])
