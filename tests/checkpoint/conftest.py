"""A disk in memory that can be stopped at any operation, and can lose what was not synced.

The model is the one of ALICE (Pillai et al., OSDI 2014) at its least kind: of the operations that
no sync has made durable, any may be lost, in any combination, and a write may be cut short. Syncing
a file makes its content durable, not its name; syncing a directory makes its names durable.
"""

import errno
import io
import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest


class Link(NamedTuple):
    """Names of one directory changed, all at once: name -> inode, or None where it is gone."""

    directory: int
    names: dict[str, int | None]


class Write(NamedTuple):
    """Bytes were written to a file."""

    inode: int
    offset: int
    data: bytes


class Sync(NamedTuple):
    """All that was done to an inode before is durable."""

    inode: int


Operation = Link | Write | Sync
ROOT = 0


@dataclass
class State:
    """What a disk holds: the names in each directory, and the bytes in each file."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, Link):
            names = self.directories.setdefault(operation.directory, {})
            for name, inode in operation.names.items():
                if inode is None:
                    names.pop(name, None)
                else:
                    names[name] = inode
        elif isinstance(operation, Write):
            content = self.files.setdefault(operation.inode, bytearray())
            end = operation.offset + len(operation.data)
            content.extend(bytes(max(0, end - len(content))))
            content[operation.offset : end] = operation.data


class MemoryFiles:
    """`kfit.checkpoint.files.Files` in memory; every operation is logged."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State()
        self.log: list[Operation] = []
        self.kinds: dict[int, str] = {ROOT: "directory"}
        for names in self.state.directories.values():
            for inode in names.values():
                is_directory = inode in self.state.directories
                self.kinds[inode] = "directory" if is_directory else "file"
        self._inodes = itertools.count(1 + max(self.kinds))

    def _do(self, operation: Operation) -> None:
        self.state.apply(operation)
        self.log.append(operation)

    def _find(self, path: str) -> tuple[int, str, int | None]:
        """The directory that a path is in, its name there, and its inode."""
        *parents, name = path.strip("/").split("/")
        directory = ROOT
        for parent in parents:
            directory = self.state.directories[directory].get(parent, -1)
            if self.kinds.get(directory) != "directory":
                raise FileNotFoundError(errno.ENOENT, "No such directory", path)
        inode = directory if not name else self.state.directories.get(directory, {}).get(name)
        return directory, name, inode

    def _existing(self, path: str) -> int:
        inode = self._find(path)[2]
        if inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file", path)
        return inode

    def _make(self, path: str, kind: str) -> int:
        directory, name, inode = self._find(path)
        if inode is not None:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        made = next(self._inodes)
        self.kinds[made] = kind
        self._do(Link(directory, {name: made}))
        return made

    def resolve(self, path: str) -> str:
        return path

    def pass_on(self, file: Any) -> None:
        """Promises nothing, so there is nothing to simulate."""

    def make_directory(self, path: str) -> None:
        self.state.directories.setdefault(self._make(path, "directory"), {})

    def create(self, path: str) -> Any:
        inode = self._make(path, "file")
        self.state.files.setdefault(inode, bytearray())
        return _Writing(self, inode)

    def open(self, path: str) -> Any:
        inode = self._existing(path)
        if self.kinds[inode] != "file":
            raise OSError(f"{path} is no regular file")
        return io.BytesIO(bytes(self.state.files.get(inode, b"")))

    def size(self, path: str) -> int:
        return len(self.state.files.get(self._existing(path), b""))

    def sync(self, file: Any) -> None:
        self._do(Sync(file.inode))

    def sync_directory(self, path: str) -> None:
        self._do(Sync(self._existing(path)))

    def list(self, path: str) -> list[str]:
        inode = self._existing(path)
        if self.kinds[inode] != "directory":
            raise NotADirectoryError(errno.ENOTDIR, "Not a directory", path)
        return sorted(self.state.directories.get(inode, {}))

    def is_directory(self, path: str) -> bool:
        inode = self._find(path)[2]
        return inode is not None and self.kinds[inode] == "directory"

    def is_file(self, path: str) -> bool:
        inode = self._find(path)[2]
        return inode is not None and self.kinds[inode] == "file"

    def rename(self, old: str, new: str) -> None:
        inode = self._existing(old)
        (directory, old_name, _), (other, new_name, there) = self._find(old), self._find(new)
        assert directory == other, "a rename between two directories is not one operation"
        if there is not None and self.state.directories.get(there):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", new)
        self._do(Link(directory, {old_name: None, new_name: inode}))

    def remove(self, path: str) -> None:
        directory, name, _ = self._find(path)
        assert self.kinds[self._existing(path)] == "file"
        self._do(Link(directory, {name: None}))

    def remove_directory(self, path: str) -> None:
        directory, name, _ = self._find(path)
        if self.state.directories.get(self._existing(path)):
            raise OSError(errno.ENOTEMPTY, "Directory not empty", path)
        self._do(Link(directory, {name: None}))


class _Writing(io.RawIOBase):
    """A file being written; one call writes at most 4 kB, as a system call may."""

    def __init__(self, files: MemoryFiles, inode: int) -> None:
        self._files, self.inode, self._offset = files, inode, 0

    def write(self, data: Any) -> int:
        part = bytes(data[:4096])
        self._files._do(Write(self.inode, self._offset, part))
        self._offset += len(part)
        return len(part)


def state_after(log: list[Operation], count: int, lost: Any = (), torn: bool = False) -> State:
    """The disk after the first `count` operations of a log.

    Args:
        log: The operations.
        count: How many were begun.
        lost: Indices of those that were lost.
        torn: Whether the last one, if it is a write, was cut short.
    """
    state = State()
    for index, operation in enumerate(log[:count]):
        if index in lost:
            continue
        if torn and index == count - 1 and isinstance(operation, Write):
            operation = operation._replace(data=operation.data[: len(operation.data) // 2])
        state.apply(operation)
    return state


def not_durable(log: list[Operation], count: int) -> list[int]:
    """Indices of the first `count` operations that a loss of power may undo."""
    loose = []
    for index, operation in enumerate(log[:count]):
        if isinstance(operation, Sync):
            loose = [i for i in loose if _inode(log[i]) != operation.inode]
        else:
            loose.append(index)
    return loose


def _inode(operation: Operation) -> int:
    return operation.directory if isinstance(operation, Link) else operation.inode


def snapshot_of(step: int, size: int = 50, workers: int = 1) -> Any:
    """A snapshot whose every part says which step it is of; a part of it has a row a worker."""
    from kfit.checkpoint.snapshot import Snapshot

    arrays = [np.full((size,), step, "float32"), np.arange(step, step + 3), np.float64(step)]
    state = {"variables": arrays, "progress": {"step": step}, "logs": {"loss": float(step)}}
    state["random"] = {"tasks": np.array([[step, worker] for worker in range(workers)])}
    return Snapshot({"step": step, "num_workers": workers}, state)


def step_of(snapshot: Any) -> int:
    """The step that all parts of a snapshot of `snapshot_of` are of."""
    step = snapshot.about["step"]
    weights, numbers, scalar = snapshot.state["variables"]
    assert np.all(weights == step)
    assert numbers.tolist() == [step, step + 1, step + 2]
    assert scalar == step
    rows = [[step, worker] for worker in range(snapshot.about["num_workers"])]
    assert snapshot.state["random"]["tasks"].tolist() == rows
    assert snapshot.state["progress"]["step"] == snapshot.state["logs"]["loss"] == step
    return int(step)


@pytest.fixture(scope="session")
def disk() -> SimpleNamespace:
    """The disk in memory and what goes with it."""
    return SimpleNamespace(
        Files=MemoryFiles,
        State=State,
        Write=Write,
        Sync=Sync,
        state_after=state_after,
        not_durable=not_durable,
        snapshot_of=snapshot_of,
        step_of=step_of,
    )
