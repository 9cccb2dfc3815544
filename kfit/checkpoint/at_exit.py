"""Deletes the snapshots of a finished training when the whole program has ended successfully.

The snapshots are kept until then, since a program that is killed after `fit`, during an evaluation
or while it saves the model, would otherwise have to train again. A program has ended successfully
if its process exits with status 0 and every `fit` has finished. The deletion takes two steps:

1. When the Python interpreter shuts down, the end is recorded in the lock file of the directory
   (`lock.py`), and an empty file `.kfit-ending` is created beside the lock file. As long as
   `.kfit-ending` exists, the record is not confirmed, since the exit status is not known yet.
2. In the C function `exit`, the last thing that a process runs, the C library deletes
   `.kfit-ending` if the status is 0, and then the snapshots.

If the next program finds the record but no `.kfit-ending`, the previous program has ended
successfully, and there is nothing to resume from.

Python code cannot get the exit status: in an `atexit` function `sys.exit(1)` looks like any other
end. But glibc calls the functions that are registered with `__cxa_atexit` as
`function(argument, status)`. Python has already shut down at that time, so only functions of the C
library can be registered, with arguments that are chosen beforehand. The functions below are called
in this order; `root` is a descriptor of the directory `/`, and 7 one of the directory of snapshots.
All paths to delete begin with `/proc/self/fd/0`, the directory that descriptor 0 refers to:

    fflush_unlocked(stdout)   writes buffered output, while all descriptors are still unchanged
    fflush_unlocked(stderr)
    close(0)                  closes descriptor 0
    dup2(root, status)        makes the descriptor with the number `status` refer to `/`
    unlink("/proc/self/fd/0/proc/self/fd/7/.kfit-ending"), and then each file of a snapshot

`fflush(NULL)` would wait for the locks of all streams, and a thread that waits for a line from the
terminal holds the lock of `stdin` for ever. So only the streams for output are flushed, and without
their locks, as `exit` itself does afterwards.

The descriptors of the directory and of each snapshot's folder are opened when their content is
known to be kfit's. So nothing is deleted elsewhere if a folder is replaced by a link afterwards.

If the status is 0, descriptor 0 now refers to `/`, and the files are deleted. With any other status
descriptor 0 stays closed, so these paths do not exist and nothing is deleted. If the process is
killed between these calls, the next program deletes the remaining snapshots, since `.kfit-ending`
is deleted first.

Other C libraries (macOS, musl) do not pass the status. With them the snapshots stay in the
directory until they are deleted by hand. A process that `multiprocessing` has started may end
without calling `exit`. So it deletes the snapshots itself, on any system, if its function has ended
without an exception.

Under `kfit run` another task may still fail. So a task of `kfit run` records the ID of the run, and
deletes neither the snapshots nor `.kfit-ending`. When all tasks have succeeded, their supervisor
deletes `.kfit-ending` (`heartbeat/unconfirmed_ends.py`), and the next run deletes the snapshots
when it begins. If a task has failed, the next run, or the restart, resumes from them.
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
import traceback
from typing import Any, NamedTuple

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock, recorded_end
from kfit.checkpoint.store import Store
from kfit.heartbeat import Heartbeat
from kfit.heartbeat.unconfirmed_ends import MARKER
from kfit.user_files.ownership import ForeignFileError


class _Over(NamedTuple):
    """A finished training, recorded until the program ends.

    Attributes:
        pid: The ID of the process that ran the training.
        lock_count: How many times the directory had been locked when the training locked it. This
            number shows later whether another run has used the directory since.
    """

    pid: int
    lock_count: int


_OVER: dict[str, _Over] = {}
"""The finished trainings whose snapshots are to be deleted at the end, by directory."""
# An entry also stays if the `fit` has succeeded, but its snapshots are still needed (`leave`).
_UNFINISHED: dict[str, int] = {}
"""The directories of `fit`s that have begun and not succeeded yet, with the process IDs."""
_LEFT: dict[str, str] = {}
"""Messages about directories with an unfinished `fit` of an earlier run, by directory."""
_HELD: list[DirectoryLock] = []
_PROGRAM = "program"
"""What is recorded in the lock instead of the ID of a run, if there is no supervisor."""
_HAS_STATUS = sys.platform == "linux" and "CS_GNU_LIBC_VERSION" in os.confstr_names
"""Whether the C library passes the exit status to the registered functions, as glibc does."""
_GATE = "/proc/self/fd/0"
"""A path that leads to the root directory if the exit status is 0, and otherwise nowhere."""

_LIBC = ctypes.CDLL(None)
_LIBC.strdup.restype = ctypes.c_void_p


def keep(directory: str) -> None:
    """Records that a `fit` has begun; it counts as unfinished until `finish` is called.

    The snapshots of finished `fit`s are deleted when the program ends (`clear_all`). But if any
    `fit` of this process is unfinished then, no snapshots are deleted in any directory.

    Args:
        directory: The path of the directory of snapshots, without symbolic links.
    """
    _OVER.pop(directory, None)
    _LEFT.pop(directory, None)
    _UNFINISHED[directory] = os.getpid()


def leave(directory: str, message: str) -> None:
    """Records that a `fit` has succeeded, but that its snapshots are still needed by a later `fit`.

    Called instead of `finish` if an earlier run of the program was interrupted in a later `fit`,
    which this process has not called yet. Since the record of `keep` stays, this process deletes no
    snapshots unless a later `fit` with the directory calls `finish`.

    Args:
        directory: The path of the directory of snapshots, without symbolic links.
        message: The message to print if the process ends without calling the later `fit`.
    """
    _LEFT[directory] = message


def finish(directory: str, lock_count: int | None) -> None:
    """Records that a `fit` has succeeded, so its snapshots can be deleted when the program ends.

    Args:
        directory: The path of the directory of snapshots, without symbolic links.
        lock_count: How many times the directory had been locked when this `fit` locked it
            (`DirectoryLock.lock_count`). This number shows at the end whether another run has used
            the directory since. None keeps the snapshots.
    """
    _UNFINISHED.pop(directory, None)
    if lock_count is None:
        return
    is_first = all(over.pid != os.getpid() for over in _OVER.values())
    _OVER[directory] = _Over(os.getpid(), lock_count)
    if is_first and multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, _clear_in_child, exitpriority=0)


def has_ended(directory: str, lock: DirectoryLock) -> bool:
    """Returns whether the snapshots in a directory are obsolete, since their run has succeeded.

    Called before `fit` looks for a snapshot to resume from. A run that succeeds leaves a record in
    the lock file (`DirectoryLock.ended`). The result is False if there is no record, and in two
    more cases:

    - There is a file `.kfit-ending`. Then the record is not confirmed: the program, or another task
      of its run, may have failed after it had written the record.
    - The record is of the run of `kfit run` to which this process belongs. Then another task has
      failed after the record was written, and all tasks were restarted.

    Args:
        directory: The directory of snapshots.
        lock: The lock of the directory, which has read the record.
    """
    return lock.ended not in (None, lock.run) and _is_confirmed(directory)


def next_run_deletes(directory: str) -> bool:
    """Returns whether the run that saved the snapshots in a directory has succeeded.

    If so, the next run deletes them when it begins. Nothing is changed in the directory.

    Args:
        directory: The directory of snapshots.
    """
    return recorded_end(directory) is not None and _is_confirmed(directory)


def _is_confirmed(directory: str) -> bool:
    return not os.path.lexists(os.path.join(directory, MARKER))


def begin(directory: str, lock: DirectoryLock) -> None:
    """Deletes the record that an earlier program has ended successfully.

    Called when a `fit` begins to use the directory. If the record stayed and this program failed,
    the next program would believe that this program has succeeded, and delete its snapshots. A
    file `.kfit-ending`, which says that the record is not confirmed, is deleted, too.

    Args:
        directory: The directory of snapshots.
        lock: The lock of the directory. The lock file contains the record.

    Raises:
        ForeignFileError: If there is a `.kfit-ending` that kfit did not create.
    """
    lock.note_end(None)
    path = os.path.join(directory, MARKER)
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if not stat.S_ISREG(found.st_mode) or found.st_size:
            raise ForeignFileError(
                f"{path} must be an empty file that kfit made, or not there; what is there is "
                "something else. Move it away, or give this run another directory."
            )
        os.unlink(path)


def clear_all() -> None:
    """Arranges that the snapshots of finished trainings are deleted if the program exits with 0.

    Called when the Python interpreter shuts down. The exit status is not known yet, so functions of
    the C library are registered, which delete the snapshots when the process exits. Nothing is
    registered if the program has failed with an error, if a `fit` is unfinished, or if the C
    library is not glibc. The messages that `leave` has recorded are printed.
    """
    for directory, message in _LEFT.items():
        if _UNFINISHED.get(directory) == os.getpid():
            print(message, file=sys.stderr, flush=True)
    if not _HAS_STATUS:
        return
    found = [entry for lock in _ended_locks() for entry in _at_exit_of(lock)]
    if found:
        root = int(os.path.basename(_opened("/")))
        # `dup2` may replace a descriptor with buffered output, so that is written first.
        flushes = [
            (_LIBC.fflush_unlocked, ctypes.c_void_p.in_dll(_LIBC, name).value)
            for name in ("stdout", "stderr")
        ]
        found[:0] = [*flushes, (_LIBC.close, 0), (_LIBC.dup2, root)]
    for function, argument in reversed(found):  # what is registered last is called first
        address = ctypes.cast(function, ctypes.c_void_p)
        # Not a private name: it is part of the C library's public ABI.
        _LIBC.__cxa_atexit(address, ctypes.c_void_p(argument), None)  # noqa: SLF001


def _clear_in_child() -> None:
    """Deletes the snapshots of finished trainings at the end of a `multiprocessing` process.

    If the process ends with an error, or it cannot be known whether it does, the snapshots are
    kept. Under `kfit run` the end is only recorded, and the next run deletes the snapshots.
    """
    if not _has_succeeded_in_child():
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


def _has_succeeded_in_child() -> bool:
    """Returns whether the function of this `multiprocessing` process has returned without an error.

    Up to Python 3.12 `multiprocessing` calls this module while it handles the function's error.
    Later versions call it after that in a forked process; then the result is False, since an error
    could not be seen any more.
    """
    error = sys.exc_info()[1]
    is_exit = isinstance(error, SystemExit) and error.code in (None, 0)
    names = (frame.name for frame in traceback.extract_stack())
    return (error is None or is_exit) and "_bootstrap" in names


def _ended_locks() -> list[DirectoryLock]:
    """Locks the directories whose snapshots can be deleted now, and returns the locks.

    The result is empty if the program has failed or a `fit` is unfinished. Directories that another
    run has used since are left out. The records of finished trainings are deleted, so a second call
    returns no lock.
    """
    locks = []
    if not _has_failed() and os.getpid() not in _UNFINISHED.values():
        for directory, over in _OVER.items():
            if over.pid != os.getpid():
                continue  # it was recorded before a fork, by the parent process
            with contextlib.suppress(DirectoryInUseError, FileNotFoundError):
                lock = DirectoryLock(directory)
                if lock.lock_count == over.lock_count + 1:
                    locks.append(lock)
                else:  # another run has used the directory since; the snapshots are its own
                    lock.release()
    _OVER.clear()
    return locks


def _at_exit_of(lock: DirectoryLock) -> list[tuple[Any, int | None]]:
    """Records in a lock file that the program has ended, and prepares to delete the snapshots.

    A file `.kfit-ending` is created, too. As long as this file exists, the record does not count,
    since the program may still exit with an error.

    Args:
        lock: The lock of the directory of snapshots.

    Returns:
        The C functions to call if the process exits with status 0, each with its argument, in the
        order of the calls. They delete `.kfit-ending`, and then the snapshots. Under `kfit run`
        there are none, since its supervisor deletes `.kfit-ending`; in a process that it does not
        watch, only `.kfit-ending` is deleted. If the supervisor cannot be told, nothing is deleted.
    """
    directory = os.path.dirname(lock.path)
    here = _opened(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    os.close(os.open(f"{here}/{MARKER}", flags, 0o600))
    lock.note_end(lock.run or _PROGRAM)
    unlink, rmdir = _LIBC.unlink, _LIBC.rmdir
    found = [(unlink, f"{here}/{MARKER}")]
    if lock.run is not None:
        lock.release()
        if _is_told_to_supervisor(directory):
            return []
    else:
        _HELD.append(lock)  # keeps the directory locked until the process has ended
        files, folders = Store(directory).paths()
        opened: dict[str, str] = {}
        for folder in folders:
            with contextlib.suppress(OSError):  # it is no folder any more
                opened[folder] = _opened(folder)
        for path in files:
            folder, name = os.path.split(path)
            if folder in opened:
                found.append((unlink, f"{opened[folder]}/{name}"))
        found += [(rmdir, f"{here}/{os.path.basename(folder)}") for folder in folders]
        found += [(unlink, f"{here}/{os.path.basename(lock.path)}"), (rmdir, directory)]
    # `strdup` copies the path to memory that is still valid after Python has shut down.
    return [(function, _LIBC.strdup(os.fsencode(_GATE + path))) for function, path in found]


def _is_told_to_supervisor(directory: str) -> bool:
    """Returns whether a supervisor decides if the snapshots are still needed; tells it of the end.

    If it cannot be told, `.kfit-ending` stays, and so do the snapshots: another task may still
    fail.
    """
    marker = os.path.join(directory, MARKER)
    try:
        return Heartbeat.of_environment().note_end(marker)
    except OSError as error:
        print(
            f"kfit: note: `kfit run` could not be told that the training in {directory} has ended "
            f"({error.strerror}), so its snapshots stay, and the next run resumes from them. "
            "Delete the folder to begin anew.",
            file=sys.stderr,
            flush=True,
        )
        return True


def _opened(directory: str) -> str:
    """Opens a directory until the process ends, and returns a path of its descriptor.

    Whatever is put at the path `directory` later, the returned path leads to this directory.

    Raises:
        OSError: If there is no directory, or a link to one.
    """
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(directory, flags)
    kept = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, 3)  # not 0, which will be closed
    os.close(opened)
    return f"/proc/self/fd/{kept}"


def _has_failed() -> bool:
    """Returns whether the program ends with an uncaught Python error.

    In an interactive session the result is False, since the session continues after an error.
    """
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


atexit.register(clear_all)
