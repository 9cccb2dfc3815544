"""One run at a time writes to a directory of snapshots.

The lock is the system's (`flock`), so it goes with the process that holds it, however that ends.
Beside it the file tells who holds it, for people, and the generation: the number of runs that have
written here so far, which ranks their snapshots. It also holds what they have noted: which of them
has come to its end, and the marks of their `fit`s. A file of that name that kfit did not write is
refused, and stays as it is.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import warnings
from collections.abc import Mapping
from typing import Any

from kfit.checkpoint import marks
from kfit.checkpoint.marks import Marks
from kfit.user_files.ownership import ForeignFileError, check_owner

_NAME = ".kfit-lock"
_SIZE = 1024
"""Bytes of the file, filled up by blanks: it is always written over as a whole."""
_TYPES = {
    "pid": int,
    "host": str,
    "run": str | None,
    "start": int,
    "generation": int,
    "ended": str | None,
    "fits": list,
}
_RUN, _GENERATION = "KFIT_RUN", "KFIT_GENERATION"
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class DirectoryInUseError(RuntimeError):
    """Another run that is alive writes to the directory."""


class DirectoryLock:
    """Holds a directory for this run until `release`.

    A task that `kfit run` has started again takes the lock from the one that it replaces, should
    that be stopped or cut off and still hold it.

    Args:
        directory: The directory, which was given as `backup_dir`; it exists.
        environ: Environment variables; `kfit run` says there which run and which start this is.

    Raises:
        DirectoryInUseError: If another run holds it.
        ForeignFileError: If the directory is another user's, or a file with the lock's name is
            there that kfit did not write.
    """

    def __init__(self, directory: str, environ: Mapping[str, str] = os.environ) -> None:
        check_owner("backup_dir", directory)
        self._path = os.path.join(directory, _NAME)
        self._own: dict[str, Any] = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "run": environ.get(_RUN),
            "start": int(environ.get(_GENERATION, "0")),
            "ended": None,
            "fits": (),
        }
        self._descriptor = -1
        try:
            self._own["generation"] = self._take(directory) + 1
            self._write()
        except BaseException:
            self.release()
            raise

    @property
    def generation(self) -> int:
        """How many runs have held the directory, this one included."""
        return int(self._own["generation"])

    @property
    def path(self) -> str:
        """The file."""
        return self._path

    @property
    def run(self) -> str | None:
        """The run of `kfit run` that this process belongs to; None without one."""
        found: str | None = self._own["run"]
        return found

    @property
    def ended(self) -> str | None:
        """The run of `kfit run` that has come to its end here, as `note_end` said."""
        found: str | None = self._own["ended"]
        return found

    def note_end(self, run: str | None) -> None:
        """Notes that a run has come to its end here, so that its snapshots are of no more use.

        Args:
            run: The run; None takes it back.
        """
        self._own["ended"] = run
        self._write()

    @property
    def fits(self) -> Marks:
        """The marks of the `fit`s that this run and earlier ones have begun here."""
        found: Marks = self._own["fits"]
        return found

    def note_fits(self, fits: Marks) -> None:
        """Notes the marks of the `fit`s; where not all find room, of the last ones."""
        self._own["fits"] = fits
        self._write()

    @property
    def is_held(self) -> bool:
        """Whether nobody has taken it over; a lock that is gone was deleted with its directory."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Lets others have the directory; may be called again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Removes the lock's file, with the directory, and releases it."""
        self._unlink()
        self.release()

    def _take(self, directory: str) -> int:
        """Locks the file; returns the generation of the last one to hold it."""
        generation = 0
        while True:
            self._open()
            held = self._read()
            generation = max(generation, held.get("generation", 0))
            self._own["ended"] = held.get("ended")
            self._own["fits"] = held.get("fits", ())
            if not self._lock():
                if not self._replaces(held):
                    raise DirectoryInUseError(
                        f"{directory} is in use by process {held.get('pid')} on "
                        f"{held.get('host')!r}: two runs cannot write their snapshots to one "
                        "directory. Give this run another one, or end that process."
                    )
            elif not self.is_held:
                continue  # it was taken over, or removed, meanwhile
            elif os.fstat(self._descriptor).st_nlink == 1:
                return generation
            # The old file is left to the task that this one replaces, which will see that it holds
            # nothing; or to the other directory where it has a name (`cp -l`).
            self._unlink()

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

    def _open(self, flags: int = 0) -> None:
        self.release()
        try:
            flags |= os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            self._descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise self._foreign() from error

    def _read(self) -> dict[str, Any]:
        """What the file says; an empty one, or one that a loss of power has emptied, nothing.

        Raises:
            ForeignFileError: If kfit did not write it.
        """
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            raise self._foreign()
        content = os.pread(self._descriptor, _SIZE + 1, 0)
        if not content.strip(b"\0"):
            return {}
        try:
            found = json.loads(content)
        except ValueError:
            found = None
        if len(content) != _SIZE or not isinstance(found, dict) or set(found) != set(_TYPES):
            raise self._foreign()
        if not all(isinstance(found[key], kind) for key, kind in _TYPES.items()):
            raise self._foreign()
        try:
            return {**found, "fits": marks.parse(found["fits"])}
        except ValueError as error:
            raise self._foreign() from error

    def _unlink(self) -> None:
        """Takes the file away, unless another one has taken its place."""
        if self.is_held:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _write(self) -> None:
        content = json.dumps(self._own).encode()
        while len(content) > _SIZE and self._own["fits"]:
            self._own["fits"] = self._own["fits"][1:]
            content = json.dumps(self._own).encode()
        os.pwrite(self._descriptor, content.ljust(_SIZE), 0)
        os.fsync(self._descriptor)

    def _foreign(self) -> ForeignFileError:
        return ForeignFileError(
            f"{self._path} must be a lock that kfit wrote, or not there; what is there is "
            "something else. Move it away, or give this run another directory."
        )
