"""Processes that save in one directory, and whose every operation on the disk waits for the test.

The disk is the one in memory of `conftest.py`; the locks are real.
"""

import contextlib
import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

from kfit.checkpoint.lock import DirectoryInUseError, DirectoryLock
from kfit.checkpoint.store import NoGoodSnapshotError, SnapshotName, Store
from kfit.checkpoint.writer import Writer

_SOON = 60.0


class KilledError(BaseException):
    """The process was killed: nothing that it has not done yet is ever done."""


class Gate:
    """Lets a thread do so many operations on the disk; before the next one it waits, or fails."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._left = 0.0
        self._waits = False
        self._failure: BaseException | None = None
        self.is_over = False

    def __call__(self) -> None:
        """Waits until the next operation is allowed; called in the thread before each one."""
        with self._changed:
            while not self._left:
                if self._failure is not None:
                    failure = self._failure
                    if isinstance(failure, OSError):  # it happens once; a kill is for good
                        self._failure, self._left = None, math.inf
                    raise failure
                self._waits = True
                self._changed.notify_all()
                self._changed.wait()
            self._left -= 1

    def begin(self) -> None:
        self._left, self._waits, self._failure, self.is_over = 0.0, False, None, False

    def end(self) -> None:
        """Called in the thread when its work is over."""
        with self._changed:
            self.is_over = True
            self._changed.notify_all()

    def allow(self, count: float, failure: BaseException | None = None) -> None:
        """Lets `count` more operations pass, and waits until they are done, or the work is over."""
        with self._changed:
            self._left, self._waits, self._failure = count, False, failure
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._waits or self.is_over, _SOON)


def through(gate: Gate, disk: Any, files: Any) -> Any:
    """The same disk as `files`, with the gate before each operation."""

    def gated(name: str) -> Callable[..., Any]:
        def act(self: Any, *args: Any) -> Any:
            gate()
            return getattr(disk.Files, name)(self, *args)

        return act

    def do(self: Any, operation: Any) -> None:
        if isinstance(operation, disk.Write):  # the others have passed the gate before they looked
            gate()
        disk.Files._do(self, operation)

    names = ("make_directory", "create", "open", "sync", "sync_directory", "rename")
    acts = {name: gated(name) for name in (*names, "remove", "remove_directory")}
    view = type("Through", (disk.Files,), {**acts, "_do": do})()
    view.__dict__ = files.__dict__
    return view


class Process:
    """A process that saves in the directory as `BackupAndRestore` does, with its writer's thread.

    Attributes:
        kind: What the thread is doing: "begin", "save" or "clear"; empty if it does nothing.
        step: The step that is being saved.
        workers: The number of workers of the training, each of which has a row in the snapshots.
        trusted: The snapshots that this process may know to be good, since it has begun to write
            them, or has read them.
        good: Those that it has read, or whose save has returned.
        needed: Snapshots that it must not delete.
    """

    def __init__(
        self,
        disk: Any,
        files: Any,
        directory: str,
        environ: dict[str, str],
        keep: int,
        workers: int,
    ) -> None:
        self.lock = DirectoryLock(directory, environ)
        self.environ = environ
        self.keep = keep
        self.kind = ""
        self.step = 0
        self.workers = workers
        self.trusted: set[SnapshotName] = set()
        self.good: set[SnapshotName] = set()
        self.needed: set[SnapshotName] = set()
        self._gate = Gate()
        self._writer = Writer()
        self._result: Any = None
        self._files = through(self._gate, disk, files)
        self.store = Store("/", keep, files=self._files, is_needed=self.needed.__contains__)
        self.store.lock_count = max(self.store.lock_count, self.lock.lock_count)

    def begin(self) -> Any:
        self.store.sweep()
        self.store.probe()
        return self.store.newest()

    def save(self, snapshot: Any) -> SnapshotName:
        if not self.lock.is_held:
            raise DirectoryInUseError("this process was replaced")
        return self.store.save(snapshot)

    def start(self, kind: str, work: Callable[[], Any]) -> None:
        """Begins a work, which waits before its first operation."""
        assert not self.kind
        self.kind = kind
        self._gate.begin()

        def to_the_end() -> None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of the files that are not kfit's
                    self._result = work()
            finally:
                self._gate.end()

        self._writer.submit(to_the_end)
        self._gate.allow(0)

    def advance(self, count: float, failure: OSError | None = None) -> bool:
        """Lets the work do `count` operations; returns whether it is over."""
        self._gate.allow(count, failure)
        return self._gate.is_over

    def result(self) -> Any:
        """What the work has returned; raises what it has raised."""
        self.kind = ""
        self._writer.wait()
        return self._result

    def die(self) -> None:
        """Ends the process where it is; the system releases its lock."""
        if self.kind:
            self._gate.allow(0, KilledError())
            with contextlib.suppress(KilledError, OSError, NoGoodSnapshotError):
                self.result()
        self.lock.release()
