"""Snapshots of a training that is over are deleted when the program has come to its end, too.

Until then a kill, in an evaluation or while the model is saved, would have all be trained again. A
process has come to its end when Python ends it, and not after an error that nobody caught. Python
needs seconds for that where TensorFlow is loaded, and a kill may come in them as well. So when
Python calls this module, it notes the end in the lock, and lays a file beside it that says "not
yet". The C library removes that file in its own exit, which is the last that a process does, and
then the snapshots. A program that finds the note and no such file has nothing to go on from.

Under `kfit run` another task may still fail, after which all start again: there the note names the
run, and the next run, which is another one, deletes the snapshots when it begins.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import stat
import sys
from typing import NamedTuple

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.store import Store
from kfit.foreign import ForeignFileError


class _Over(NamedTuple):
    """A training whose snapshots are not needed after this process; which that is, and its lock."""

    pid: int
    generation: int


_OVER: dict[str, _Over] = {}
_HELD: list[DirectoryLock] = []
_NOT_YET = ".kfit-ending"
_PROGRAM = "program"
"""What the lock notes for the run where there is no supervisor that names one."""

_LIBC = ctypes.CDLL(None)
_LIBC.strdup.restype = ctypes.c_void_p


def clear_at_exit(directory: str, generation: int) -> None:
    """Has the snapshots in a directory deleted when this process ends.

    Args:
        directory: The directory's path, without links.
        generation: That of the lock under which the training was.
    """
    _OVER[directory] = _Over(os.getpid(), generation)


def keep(directory: str) -> None:
    """Has the snapshots in a directory kept after all: another training goes on there."""
    _OVER.pop(directory, None)


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
    if _has_failed():
        return
    for directory, over in _OVER.items():
        if over.pid == os.getpid():  # a child that was forked ends for itself
            with contextlib.suppress(DirectoryInUseError, FileNotFoundError):
                _clear(directory, over.generation)
    _OVER.clear()


def _clear(directory: str, generation: int) -> None:
    lock = DirectoryLock(directory)
    if lock.generation != generation + 1:
        lock.release()  # another run has been there meanwhile; what is there is its own
        return
    if lock.run is not None:
        lock.note_end(lock.run)
        lock.release()
        return
    not_yet = os.path.join(directory, _NOT_YET)
    os.close(os.open(not_yet, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))
    lock.note_end(_PROGRAM)
    _HELD.append(lock)  # until the process is gone
    files, folders = Store(directory).paths()
    unlink, rmdir = _LIBC.unlink, _LIBC.rmdir
    in_order = [(unlink, not_yet), *((unlink, path) for path in files)]
    in_order += [(rmdir, path) for path in folders]
    in_order += [(unlink, lock.path), (rmdir, directory)]
    for function, path in reversed(in_order):  # what is told last is called first
        # The copy of the path outlives Python, as the function does.
        copied = _LIBC.strdup(os.fsencode(path))
        address = ctypes.cast(function, ctypes.c_void_p)
        _LIBC.__cxa_atexit(address, ctypes.c_void_p(copied), None)


def _has_failed() -> bool:
    """Whether Python ends because of an error. A notebook goes on after one."""
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")


atexit.register(clear_all)
