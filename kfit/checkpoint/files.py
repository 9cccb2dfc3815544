"""The door to the file system: every write of a snapshot goes through it.

Tests put another one in its place, which dies at the n-th operation or forgets what was not synced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


class Files:
    """The real file system.

    Files are private to the user (mode 0600, directories 0700). Symbolic links are not followed:
    every name is looked up in the open directory that holds it, which must not be a link itself.
    `resolve` says beforehand where the links lead that a user put on the way.
    Every method raises OSError as the system does.
    """

    def resolve(self, path: str) -> str:
        """The path without links, as all others are to begin with."""
        return os.path.realpath(path)

    def make_directory(self, path: str) -> None:
        """Makes a directory whose parent exists; it must not exist yet."""
        with _parent(path) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)

    def create(self, path: str) -> BinaryIO:
        """Makes a file that does not exist yet, for writing and reading, unbuffered."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _parent(path) as (parent, name):
            return os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "r+b", buffering=0)

    def open(self, path: str) -> BinaryIO:
        """Opens a regular file for reading, unbuffered."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with _parent(path) as (parent, name):
            descriptor = os.open(name, flags, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{path} is no regular file")
        return os.fdopen(descriptor, "rb", buffering=0)

    def size(self, path: str) -> int:
        """Size of a file in bytes."""
        with _parent(path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_size

    def sync(self, file: BinaryIO) -> None:
        """Returns when the file's content is on the disk."""
        os.fsync(file.fileno())

    def pass_on(self, file: BinaryIO) -> None:
        """Has the system write what it holds of the file, and forget what is on the disk.

        So that a large file takes little of its memory: new pages for all of it can cost more time
        than writing them. It promises nothing; `sync` does.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: str) -> None:
        """Returns when a directory's entries are on the disk."""
        with _opened(path) as descriptor:
            os.fsync(descriptor)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        with _opened(path) as descriptor:
            return sorted(os.listdir(descriptor))

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory, not a link to one."""
        return stat.S_ISDIR(_mode(path))

    def is_file(self, path: str) -> bool:
        """Whether there is a regular file, not a link to one."""
        return stat.S_ISREG(_mode(path))

    def rename(self, old: str, new: str) -> None:
        """Renames within a directory, at once; an empty directory `new` is replaced."""
        with _parent(old) as (parent, name), _parent(new) as (other, new_name):
            os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=other)

    def remove(self, path: str) -> None:
        """Removes a file, or a link and not what it leads to."""
        with _parent(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory."""
        with _parent(path) as (parent, name):
            os.rmdir(name, dir_fd=parent)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """An open directory that is no link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _parent(path: str) -> Iterator[tuple[int, str]]:
    """The open directory that holds what a path names, and its name there."""
    folder, name = os.path.split(path)
    with _opened(folder or ".") as descriptor:
        yield descriptor, name


def _mode(path: str) -> int:
    """The type and rights of what is there itself; 0 where there is nothing."""
    try:
        with _parent(path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
