"""The lock of a directory of snapshots: only one run at a time writes to the directory.

The lock is an `flock` of the system, so it is released when the process that holds it ends, in
whatever way. The lock file contains

- the process that holds the lock, for error messages;
- the lock count, which is how many times the directory has been locked so far: a snapshot with a
  higher lock count is newer;
- the run that has ended successfully (`note_end`);
- the marks of the `fit`s: checksums of their weights, by which a later run recognizes each `fit`
  (`marks.py`).

If there is a file with this name that kfit did not write, an error is raised and the file is not
changed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import stat
import weakref
from collections.abc import Mapping
from typing import Any

from kfit.checkpoint import marks
from kfit.checkpoint.marks import Marks
from kfit.checkpoint.schema import LARGEST
from kfit.heartbeat.tracebacks import warn_user
from kfit.user_files.foreign_json import parse_json
from kfit.user_files.ownership import ForeignFileError, check_owner

_NAME = ".kfit-lock"
_SIZE = 1024
"""The size of the lock file in bytes: its content is padded with blanks and written as a whole."""
_TYPES = {
    "pid": int,
    "host": str,
    "run": str | None,
    "start": int,
    "lock_count": int,
    "ended": str | None,
    "fits": list,
}
_RUN, _GENERATION = "KFIT_RUN", "KFIT_GENERATION"
_SAFELY = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


_held: weakref.WeakSet[DirectoryLock] = weakref.WeakSet()
"""The locks of this process."""


def _release_in_child() -> None:
    """Closes the lock files in a process that was just forked.

    Otherwise a process of a pool that outlives its parent would hold the locks.
    """
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_release_in_child)


class DirectoryInUseError(RuntimeError):
    """An error that is raised if another running process writes to the directory of snapshots."""


class DirectoryLock:
    """The lock of a directory of snapshots, held from the creation of this object until `release`.

    When `kfit run` restarts a task, the old process of the task may still hold the lock, for
    example if it is suspended or its host has lost the connection. Then the new process takes the
    lock over, and `is_held` becomes False in the old process.

    Args:
        directory: The directory, which the user gave as `backup_dir`. It must exist.
        environ: The environment variables. `kfit run` sets the ID of the run and the number of
            restarts in them.

    Raises:
        DirectoryInUseError: If another run holds the lock.
        ForeignFileError: If the directory belongs to another user, or the lock file was not written
            by kfit.
        OSError: If the lock file cannot be created, read or written.
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
        _held.add(self)
        self._is_written = False
        try:
            self._own["lock_count"] = self._take(directory) + 1
            self._write()
        except BaseException:
            self.release()
            raise

    @property
    def lock_count(self) -> int:
        """The number of times that the directory has been locked, including this time.

        The name of a snapshot begins with such a number. A snapshot with a higher number counts as
        newer.
        """
        return int(self._own["lock_count"])

    @property
    def path(self) -> str:
        """The path of the lock file."""
        return self._path

    @property
    def run(self) -> str | None:
        """The ID of the run if this process was started by `kfit run`, else None."""
        found: str | None = self._own["run"]
        return found

    @property
    def ended(self) -> str | None:
        """The run that has ended successfully, as `note_end` has recorded; None without a record.

        It is the ID of a run of `kfit run`, or "program" if the program was started without
        `kfit run`.
        """
        found: str | None = self._own["ended"]
        return found

    def note_end(self, run: str | None) -> None:
        """Records that a run has ended successfully, so that its snapshots are no longer needed.

        Args:
            run: The ID of the run, or "program" if the program was started without `kfit run`. None
                deletes the record.
        """
        self._own["ended"] = run
        self._write()

    @property
    def fits(self) -> Marks:
        """The marks (`Mark`) in the lock file, for `fit`s of this run and of earlier runs.

        A mark has checksums of the weights of a `fit`, by which a later run of the program
        recognizes this `fit`.
        """
        found: Marks = self._own["fits"]
        return found

    def note_fits(self, fits: Marks) -> None:
        """Replaces the marks in the lock file.

        A mark has checksums of the weights of a `fit`, by which a later run recognizes this `fit`.
        If the file has no room for all marks, only the last ones are written.

        Args:
            fits: The new marks, one for each `fit`.
        """
        self._own["fits"] = fits
        self._write()

    @property
    def is_held(self) -> bool:
        """Whether this process still has the lock: no other process has taken it over.

        The result is also True if the user has deleted the lock file. A process that takes the lock
        over empties the file of this one, so that it is known even after the new file was deleted.
        """
        if self._is_written and os.fstat(self._descriptor).st_size == 0:
            return False
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.lstat(self._path))
        except FileNotFoundError:
            return True

    def release(self) -> None:
        """Releases the lock; further calls do nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def remove(self) -> None:
        """Releases the lock; deletes the lock file if no other process has replaced the file."""
        self._unlink()
        self.release()

    def _take(self, directory: str) -> int:
        """Locks the lock file, and reads the records that earlier runs have left in the file.

        Returns:
            The lock count of the last holder: how many times the directory had been locked before.
            0 if it was never locked.

        Raises:
            DirectoryInUseError: If another run holds the lock.
            ForeignFileError: If the lock file was not written by kfit.
        """
        lock_count = 0
        while True:
            self._open()
            is_locked = self._lock()
            held = self._read()  # while no other run can write it, if it is locked
            lock_count = max(lock_count, held.get("lock_count", 0))
            self._own["ended"] = held.get("ended")
            self._own["fits"] = held.get("fits", ())
            if not is_locked:
                if not self._replaces(held):
                    raise DirectoryInUseError(self._told_of_holder(directory, held))
            elif not self.is_held:
                continue  # the file was replaced or deleted after it was opened
            elif os.fstat(self._descriptor).st_nlink == 1:
                return lock_count
            # Either the task that this one replaces still holds the file, or the file is also in
            # another directory as a hard link (`cp -l`). In both cases a new file is created; the
            # replaced task finds that the file it has locked is empty, or not this one (`is_held`).
            if not is_locked:
                os.ftruncate(self._descriptor, 0)
            self._unlink()

    def _lock(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warn_user(
                f"{self._path} is on a file system without locks: a second run on the same "
                "directory is not noticed."
            )
        return True

    def _replaces(self, held: dict[str, Any]) -> bool:
        """Returns whether `kfit run` started this process to replace the task that holds the lock.

        Args:
            held: The content of the lock file.
        """
        run = held.get("run")
        return bool(run) and run == self._own["run"] and held.get("start", 0) < self._own["start"]

    def _told_of_holder(self, directory: str, held: dict[str, Any]) -> str:
        """Returns the message of the error that another holder has the lock.

        Args:
            directory: The directory, as the user gave it.
            held: The content of the lock file.
        """
        if all(held.get(key) == self._own[key] for key in ("pid", "host")):
            return (
                f"{directory} is in use by another callback of this program: two of them cannot "
                "write their snapshots to one directory. Leave one out, or give it another one."
            )
        return (
            f"{directory} is in use by process {held.get('pid')} on {held.get('host')!r}: two runs "
            "cannot write their snapshots to one directory. Give this run another one, or end that "
            "process."
        )

    def _open(self, flags: int = 0) -> None:
        self.release()
        try:
            flags |= os.O_RDWR | os.O_CREAT | _SAFELY
            self._descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise self._foreign() from error

    def _read(self) -> dict[str, Any]:
        """Returns the content of the lock file, as `_content_of` does.

        Raises:
            ForeignFileError: If kfit did not write the file.
        """
        try:
            return _content_of(self._descriptor)
        except ValueError:
            raise self._foreign() from None

    def _unlink(self) -> None:
        """Deletes the lock file, unless another process has replaced the file by its own."""
        if self.is_held:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)

    def _write(self) -> None:
        content = json.dumps(self._own).encode()
        while len(content) > _SIZE and self._own["fits"]:
            self._own["fits"] = self._own["fits"][1:]
            content = json.dumps(self._own).encode()
        if self._is_written and not self.is_held:
            return  # the file is this process's no longer, or is empty to say so
        os.pwrite(self._descriptor, content.ljust(_SIZE), 0)
        os.fsync(self._descriptor)
        self._is_written = True

    def _foreign(self) -> ForeignFileError:
        return ForeignFileError(
            f"{self._path} must be a lock that kfit wrote, or not there; what is there is "
            "something else. Move it away, or give this run another directory."
        )


def recorded_end(directory: str) -> str | None:
    """Returns the run that has ended successfully, as the lock file of a directory says.

    The directory is not locked, and nothing is changed. The result is None if there is no such
    record, or no lock file that kfit wrote.

    Args:
        directory: The directory of snapshots.
    """
    try:
        descriptor = os.open(os.path.join(directory, _NAME), os.O_RDONLY | _SAFELY)
    except OSError:
        return None
    try:
        ended: str | None = _content_of(descriptor).get("ended")
        return ended
    except (OSError, ValueError):
        return None
    finally:
        os.close(descriptor)


def _content_of(descriptor: int) -> dict[str, Any]:
    """Returns the content of a lock file.

    The result is {} if the file is empty or, after a power failure, contains only zeros.

    Args:
        descriptor: The open file.

    Raises:
        ValueError: If kfit did not write the file.
    """
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise ValueError("it is no regular file")
    content = os.pread(descriptor, _SIZE + 1, 0)
    if not content.strip(b"\0"):
        return {}
    found = parse_json(content)
    if len(content) != _SIZE or not isinstance(found, dict) or set(found) != set(_TYPES):
        raise ValueError("it has not the form of a lock")
    if not all(isinstance(found[key], kind) for key, kind in _TYPES.items()):
        raise ValueError("a value is of another type")
    if not 0 <= found["lock_count"] < LARGEST:
        raise ValueError("its lock count is out of range")
    return {**found, "fits": marks.parse(found["fits"])}
