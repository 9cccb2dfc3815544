"""Snapshots of a training that is over are deleted when the program has come to its end, too.

Until then a kill, in an evaluation or while the model is saved, would have all be trained again. A
process has come to its end when Python ends it, and not after an error that nobody caught. Under
`kfit run` another task may still fail, after which all start again: there the lock notes the run
that has ended, and the next run, which is another one, deletes the snapshots when it begins.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from typing import NamedTuple

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.store import Store


class _Over(NamedTuple):
    """A training whose snapshots are not needed after this process; which that is, and its lock."""

    pid: int
    generation: int


_OVER: dict[str, _Over] = {}


def clear_at_exit(directory: str, generation: int) -> None:
    """Has the snapshots in a directory deleted when this process ends.

    Args:
        directory: The directory's path, without links.
        generation: That of the lock under which the training was.
    """
    if not _OVER:
        atexit.register(clear_all)
    _OVER[directory] = _Over(os.getpid(), generation)


def keep(directory: str) -> None:
    """Has the snapshots in a directory kept after all: another training goes on there."""
    _OVER.pop(directory, None)


def clear(store: Store, lock: DirectoryLock) -> None:
    """Deletes the snapshots, the lock, and the directory if nothing else is in it."""
    store.clear()
    lock.remove()
    with contextlib.suppress(OSError):  # the user keeps something else there
        os.rmdir(store.directory)


def clear_all() -> None:
    """Deletes what is needed no more, or notes it for the next run; for the end of the process."""
    if _has_failed():
        return
    for directory, over in _OVER.items():
        if over.pid == os.getpid():  # a child that was forked ends for itself
            with contextlib.suppress(DirectoryInUseError, FileNotFoundError):
                _clear(directory, over.generation)


def _clear(directory: str, generation: int) -> None:
    lock = DirectoryLock(directory)
    try:
        if lock.generation != generation + 1:
            return  # another run has been there meanwhile; what is there is its own
        if lock.run is None:
            clear(Store(directory), lock)
        else:
            lock.note_end(lock.run)
    finally:
        lock.release()


def _has_failed() -> bool:
    """Whether Python ends because of an error. A notebook goes on after one."""
    return getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1")
