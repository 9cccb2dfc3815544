"""One run at a time writes to a directory of snapshots.

The lock is the system's (`flock`), so it goes with the process that holds it, however that ends.
Beside it the file tells who holds it, for people, and the generation: the number of runs that have
written here so far, which ranks their snapshots.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import warnings
from collections.abc import Mapping
from typing import Any

_NAME = "lock"
_RUN, _GENERATION = "KFIT_RUN", "KFIT_GENERATION"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class DirectoryInUseError(RuntimeError):
    """Another run that is alive writes to the directory."""


class DirectoryLock:
    """Holds a directory for this run until `release`.

    A task that `kfit run` has started again takes the lock from the one that it replaces, should
    that be stopped or cut off and still hold it.

    Args:
        directory: The directory; it exists.
        environ: Environment variables; `kfit run` says there which run and which start this is.

    Raises:
        DirectoryInUseError: If another run holds it.
    """

    def __init__(self, directory: str, environ: Mapping[str, str] = os.environ) -> None:
        self._path = os.path.join(directory, _NAME)
        self._own: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "run": environ.get(_RUN),
            "start": int(environ.get(_GENERATION, "0")),
        }
        self._descriptor = self._open()
        if not self._lock():
            held = self._read()
            if not self._replaces(held):
                os.close(self._descriptor)
                raise DirectoryInUseError(
                    f"{directory} is in use by process {held.get('pid')} on "
                    f"{held.get('host')!r}: two runs cannot write their snapshots to one "
                    "directory. Give this run another one, or end that process."
                )
            # The file of the old one is left to it, and it will see that it holds nothing.
            os.close(self._descriptor)
            os.unlink(self._path)
            self._descriptor = self._open()
            self._lock()
            self._own["generation"] = int(held.get("generation", 0)) + 1
        else:
            self._own["generation"] = int(self._read().get("generation", 0)) + 1
        self._write()

    @property
    def generation(self) -> int:
        """How many runs have held the directory, this one included."""
        return int(self._own["generation"])

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken it over; a lock that is gone was deleted with its directory."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._path))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Lets others have the directory; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Removes the lock's file, with the directory, and releases it."""
        if self.is_held:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        self.release()

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(self._path, flags, 0o600)

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warnings.warn(
                f"{self._path} is on a file system without locks: a second run on the same "
                "directory is not noticed.",
                stacklevel=4,
            )
        return True

    def _replaces(self, held: dict[str, Any]) -> bool:
        """Whether this process was started in the place of the one that holds the lock."""
        run = held.get("run")
        return bool(run) and run == self._own["run"] and held.get("start", 0) < self._own["start"]

    def _read(self) -> dict[str, Any]:
        try:
            found = json.loads(os.pread(self._descriptor, 4096, 0))
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        content = json.dumps(self._own).encode()
        os.pwrite(self._descriptor, content, 0)
        os.ftruncate(self._descriptor, len(content))
        os.fsync(self._descriptor)
