"""Deletes the snapshots of a finished training when the whole program has ended successfully.

The snapshots are kept until then, since a program that is killed after `fit`, during an evaluation
or while it saves the model, would otherwise have to train again. A program has ended successfully
if its process exits with status 0 and no `fit` is unfinished. The deletion takes two steps:

1. When the Python interpreter shuts down, the end is recorded in the lock file, and an empty file
   `.kfit-ending` is created beside it, which means "not confirmed yet".
2. In `exit`, the last thing that a process runs, the C library deletes `.kfit-ending`, and then the
   snapshots.

If a program finds the record and no `.kfit-ending`, the previous program has ended successfully,
and there is nothing to resume from.

Python code cannot get the exit status: in an `atexit` function `sys.exit(1)` looks like any other
end. But glibc calls the functions that are registered with `__cxa_atexit` as
`function(argument, status)`. Python has already shut down at that time, so only functions of the C
library can be registered, with arguments that are chosen beforehand. They are called in this order,
and descriptor 0 makes the deletions depend on the status:

    fflush(NULL)              writes buffered output, while all descriptors are still unchanged
    close(0)                  closes descriptor 0
    dup2(root, status)        opens "/" as the descriptor with the number `status`: as 0 on success
    unlink("/proc/self/fd/0/backup/.kfit-ending"), and the same for every file to be deleted

With any other status descriptor 0 stays closed, so these paths do not exist and nothing is deleted.
If the process is killed between these calls, the next program deletes the remaining snapshots,
since `.kfit-ending` is deleted first.

Other C libraries (macOS, musl) do not pass the status, so the snapshots stay there until they are
deleted by hand. A process that `multiprocessing` started does not run these functions on any
system; for it, success means that its function ended without an exception.

Under `kfit run` another task may still fail, and then all tasks are restarted. So the record there
contains the ID of the run, and the snapshots are deleted when the next run begins.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import multiprocessing
import multiprocessing.util
import os
import stat
import sys
from typing import Any, NamedTuple

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.store import Store
from kfit.user_files.ownership import ForeignFileError


class _Over(NamedTuple):
    """A finished training: the process that ran it, and the generation of its directory lock."""

    pid: int
    generation: int


_OVER: dict[str, _Over] = {}
"""The finished trainings whose snapshots are to be deleted at the end, by directory."""
_UNFINISHED: dict[str, int] = {}
"""The directories of `fit`s that have begun and not succeeded yet, with the process IDs."""
_LEFT: dict[str, str] = {}
"""Messages about directories with an unfinished `fit` of an earlier run, by directory."""
_HELD: list[DirectoryLock] = []
_NOT_YET = ".kfit-ending"
_PROGRAM = "program"
"""What is recorded in the lock instead of the ID of a run, if there is no supervisor."""
_HAS_STATUS = sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names
"""Whether the C library passes the exit status to the registered functions, as glibc does."""
_GATE = "/proc/self/fd/0"
"""A path that leads to the root directory if the exit status is 0, and otherwise nowhere."""

_LIBC = ctypes.CDLL(None)
_LIBC.strdup.restype = ctypes.c_void_p


def keep(directory: str) -> None:
    """Records that a `fit` has begun: until it succeeds, this process deletes no snapshots.

    Args:
        directory: The path of the directory of snapshots, without links.
    """
    _OVER.pop(directory, None)
    _LEFT.pop(directory, None)
    _UNFINISHED[directory] = os.getpid()


def leave(directory: str, message: str) -> None:
    """Records that an earlier run has begun a later `fit`, which this process has not called yet.

    The snapshots are kept for that `fit`.

    Args:
        directory: The path of the directory of snapshots, without links.
        message: The message to print if the process ends without calling that `fit`.
    """
    _LEFT[directory] = message


def finish(directory: str, generation: int | None) -> None:
    """Records that a `fit` has succeeded, so its snapshots can be deleted when the program ends.

    Args:
        directory: The path of the directory of snapshots, without links.
        generation: The generation of the lock that the training held; None to keep the snapshots.
    """
    _UNFINISHED.pop(directory, None)
    if generation is None:
        return
    is_first = all(over.pid != os.getpid() for over in _OVER.values())
    _OVER[directory] = _Over(os.getpid(), generation)
    if is_first and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _clear_in_child, exitpriority=0)


def has_ended(directory: str, lock: DirectoryLock) -> bool:
    """Returns whether the snapshots in a directory are of an earlier run that has succeeded.

    Then they are no longer needed. If this process is a restart within that run, they are still
    needed: another task of the run has failed.

    Args:
        directory: The directory of snapshots.
        lock: The lock of the directory.
    """
    is_noted = lock.ended is not None and lock.ended != lock.run
    return is_noted and not os.path.lexists(os.path.join(directory, _NOT_YET))


def begin(directory: str, lock: DirectoryLock) -> None:
    """Deletes the record that an earlier program has ended, since this one uses the directory now.

    Args:
        directory: The directory of snapshots.
        lock: The lock of the directory.

    Raises:
        ForeignFileError: If there is a `.kfit-ending` that kfit did not create.
    """
    lock.note_end(None)
    path = os.path.join(directory, _NOT_YET)
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size:
            raise ForeignFileError(
                f"{path} must be an empty file that kfit made, or not there; what is there is "
                "something else. Move it away, or give this run another directory."
            )
        os.unlink(path)


def clear_all() -> None:
    """Records which trainings have ended, and makes the C library delete their snapshots at exit.

    It is called when the Python interpreter shuts down. It also prints the messages of `leave`. If
    the program has failed, nothing is deleted.
    """
    for directory, message in _LEFT.items():
        if _UNFINISHED.get(directory) == os.getpid():
            print(message, file=sys.stderr, flush=True)
    if not _HAS_STATUS:
        return
    found = [entry for lock in _ended_locks() for entry in _at_exit_of(lock)]
    if found:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        root = fcntl.fcntl(root, fcntl.F_DUPFD_CLOEXEC, 3)  # not 0, which will be closed
        # `dup2` may replace a descriptor with buffered output, so that is written first.
        found[:0] = [(_LIBC.fflush, None), (_LIBC.close, 0), (_LIBC.dup2, root)]
    for function, argument in reversed(found):  # what is registered last is called first
        address = ctypes.cast(function, ctypes.c_void_p)
        # Not a private name: it is part of the C library's public ABI.
        _LIBC.__cxa_atexit(address, ctypes.c_void_p(argument), None)  # noqa: SLF001


def _clear_in_child() -> None:
    """Deletes the snapshots of finished trainings at the end of a `multiprocessing` process.

    If the process ends with an error, they are kept. Under `kfit run` only the end is recorded.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code in (None, 0):
        error = None
    if error is not None:
        _OVER.clear()
        return
    for lock in _ended_locks():
        if lock.run is not None:
            lock.note_end(lock.run)
            lock.release()
        else:
            lock.note_end(_PROGRAM)
            Store(os.path.dirname(lock.path)).clear()
            lock.remove()
            with contextlib.suppress(OSError):  # it contains other files
                os.rmdir(os.path.dirname(lock.path))


def _ended_locks() -> list[DirectoryLock]:
    """Locks the directories whose snapshots are not needed any more, and returns their locks.

    There are none if the program has failed or a `fit` is unfinished. Afterwards the records of
    finished trainings are deleted.
    """
    locks = []
    if not _has_failed() and os.getpid() not in _UNFINISHED.values():
        for directory, over in _OVER.items():
            if over.pid != os.getpid():
                continue  # it was recorded before a fork, by the parent process
            with contextlib.suppress(DirectoryInUseError, FileNotFoundError):
                lock = DirectoryLock(directory)
                if lock.generation == over.generation + 1:
                    locks.append(lock)
                else:  # another run has used the directory since; the snapshots are its own
                    lock.release()
    _OVER.clear()
    return locks


def _at_exit_of(lock: DirectoryLock) -> list[tuple[Any, int | None]]:
    """Records in the lock file that a program has ended, and creates `.kfit-ending`.

    Returns:
        The C functions to call at exit, each with its argument, in the order of the calls.
    """
    directory = os.path.dirname(lock.path)
    not_yet = os.path.join(directory, _NOT_YET)
    os.close(os.open(not_yet, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    lock.note_end(lock.run or _PROGRAM)
    unlink, rmdir = _LIBC.unlink, _LIBC.rmdir
    found = [(unlink, not_yet)]
    if lock.run is not None:
        lock.release()
    else:
        _HELD.append(lock)  # keeps the directory locked until the process has ended
        files, folders = Store(directory).paths()
        found += [*((unlink, path) for path in files), *((rmdir, path) for path in folders)]
        found += [(unlink, lock.path), (rmdir, directory)]
    # `strdup` copies the path to memory that is still valid after Python has shut down.
    return [(function, _LIBC.strdup(os.fsencode(_GATE + path))) for function, path in found]


def _has_failed() -> bool:
    """Returns whether Python ends with an uncaught error.

    An interactive session continues after an error, so the result is False there.
    """
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


atexit.register(clear_all)
