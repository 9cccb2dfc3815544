"""Snapshots of a training that is over are deleted when the program has come to its end, too.

Until then a kill, in an evaluation or while the model is saved, would have all be trained again. A
program has come to its end when its process ends with status 0 and leaves no `fit` unfinished. So
Python, when it ends, notes the end in the lock, and lays a file beside it that says "not yet". The
C library removes that file in its own exit, which is the last that a process does, and then the
snapshots. A program that finds the note and no such file has nothing to go on from.

Python tells nobody the status before that, and a `sys.exit(1)` looks like any other end. But glibc
calls what it is told to in its exit as `function(argument, status)`; Python is gone by then. So the
functions are its own, each is told beforehand what it gets, and the status opens a gate for them or
does not. In the order in which they are called:

    fflush(NULL)              what is buffered is written, while its descriptors are what they were
    close(0)                  descriptor 0, the gate, is closed
    dup2(root, status)        with status 0 it becomes the root directory; else another one does
    unlink("/proc/self/fd/0/backup/.kfit-ending"), and the like of all that is to be deleted

Where the gate is closed these paths lead nowhere. A process that is killed on the way leaves the
rest to the next program: what `.kfit-ending` no longer stands beside is of no more use.

Elsewhere (macOS, musl) nobody can tell the status, so the snapshots stay until they are deleted by
hand. Of a process that `multiprocessing` has started there is no such exit anywhere; there it is
known whether an exception has ended the function.

Under `kfit run` another task may still fail, after which all start again: there the note names the
run, and the next run, which is another one, deletes the snapshots when it begins.
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
    """A training whose snapshots are not needed after this process; which that is, and its lock."""

    pid: int
    generation: int


_OVER: dict[str, _Over] = {}
_UNFINISHED: dict[str, int] = {}
"""The directories of the `fit`s that have begun and not succeeded since, and their processes."""
_LEFT: dict[str, str] = {}
"""What is to be told of directories with a `fit` that an earlier run has left unfinished."""
_HELD: list[DirectoryLock] = []
_NOT_YET = ".kfit-ending"
_PROGRAM = "program"
"""What the lock notes for the run where there is no supervisor that names one."""
_HAS_STATUS = sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names
"""Whether the C library hands the status to what it calls in its exit: glibc does."""
_GATE = "/proc/self/fd/0"

_LIBC = ctypes.CDLL(None)
_LIBC.strdup.restype = ctypes.c_void_p


def keep(directory: str) -> None:
    """Has all snapshots of this process kept for now: a `fit` begins, and may be cut off.

    Args:
        directory: The directory's path, without links.
    """
    _OVER.pop(directory, None)
    _LEFT.pop(directory, None)
    _UNFINISHED[directory] = os.getpid()


def leave(directory: str, message: str) -> None:
    """Has all snapshots kept: an earlier run has begun a `fit` that this process has not come to.

    Args:
        directory: The directory's path, without links.
        message: What to say if the process ends without it.
    """
    _LEFT[directory] = message


def finish(directory: str, generation: int | None) -> None:
    """Takes note that the `fit` has succeeded, and has its snapshots deleted at the end.

    Args:
        directory: The directory's path, without links.
        generation: That of the lock under which the training was; None to keep the snapshots.
    """
    _UNFINISHED.pop(directory, None)
    if generation is None:
        return
    is_first = all(over.pid != os.getpid() for over in _OVER.values())
    _OVER[directory] = _Over(os.getpid(), generation)
    if is_first and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _clear_in_child, exitpriority=0)


def has_ended(directory: str, lock: DirectoryLock) -> bool:
    """Whether what is in a directory is of a program, or a run, that has come to its end."""
    is_noted = lock.ended is not None and lock.ended != lock.run
    return is_noted and not os.path.lexists(os.path.join(directory, _NOT_YET))


def begin(directory: str, lock: DirectoryLock) -> None:
    """Takes back that a program has ended here: another one goes on.

    Raises:
        ForeignFileError: If something that kfit did not make has the name of the file beside it.
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
    """Notes the ends of what is over, and has the snapshots deleted; when Python ends."""
    for directory, message in _LEFT.items():
        if _UNFINISHED.get(directory) == os.getpid():
            print(message, file=sys.stderr, flush=True)
    if not _HAS_STATUS:
        return
    found = [entry for lock in _ended_locks() for entry in _at_exit_of(lock)]
    if found:
        root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        root = fcntl.fcntl(root, fcntl.F_DUPFD_CLOEXEC, 3)  # not 0, which is closed
        # What is buffered for a descriptor that has the status as its number is written first.
        found[:0] = [(_LIBC.fflush, None), (_LIBC.close, 0), (_LIBC.dup2, root)]
    for function, argument in reversed(found):  # what is told last is called first
        address = ctypes.cast(function, ctypes.c_void_p)
        # The name is that of the C library, in whose standard it is.
        _LIBC.__cxa_atexit(address, ctypes.c_void_p(argument), None)  # noqa: SLF001


def _clear_in_child() -> None:
    """Deletes what is over when the function of a process of `multiprocessing` has ended."""
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
            with contextlib.suppress(OSError):  # files of others are there
                os.rmdir(os.path.dirname(lock.path))


def _ended_locks() -> list[DirectoryLock]:
    """The locks of the directories whose snapshots are not needed any more."""
    locks = []
    if not _has_failed() and os.getpid() not in _UNFINISHED.values():
        for directory, over in _OVER.items():
            if over.pid != os.getpid():
                continue  # a child that was forked ends for itself
            with contextlib.suppress(DirectoryInUseError, FileNotFoundError):
                lock = DirectoryLock(directory)
                if lock.generation == over.generation + 1:
                    locks.append(lock)
                else:  # another run has been there meanwhile; what is there is its own
                    lock.release()
    _OVER.clear()
    return locks


def _at_exit_of(lock: DirectoryLock) -> list[tuple[Any, int | None]]:
    """Notes the end in a lock; returns what the C library has to call, and with what."""
    directory = os.path.dirname(lock.path)
    not_yet = os.path.join(directory, _NOT_YET)
    os.close(os.open(not_yet, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    lock.note_end(lock.run or _PROGRAM)
    unlink, rmdir = _LIBC.unlink, _LIBC.rmdir
    found = [(unlink, not_yet)]
    if lock.run is not None:
        lock.release()
    else:
        _HELD.append(lock)  # until the process is gone
        files, folders = Store(directory).paths()
        found += [*((unlink, path) for path in files), *((rmdir, path) for path in folders)]
        found += [(unlink, lock.path), (rmdir, directory)]
    # The copy of the path outlives Python, as the function does.
    return [(function, _LIBC.strdup(os.fsencode(_GATE + path))) for function, path in found]


def _has_failed() -> bool:
    """Whether Python ends because of an error. A notebook goes on after one."""
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


atexit.register(clear_all)
