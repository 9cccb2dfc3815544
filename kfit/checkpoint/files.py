"""File system operations: a snapshot is read and written only through the class `Files`.

Tests replace this class with a simulation that fails at the n-th operation, or loses writes that
were not synced.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO


class Files:
    """The file system operations that snapshots need, on the real file system.

    Files and directories that the methods create can be accessed only by the user (modes 0600 and
    0700). The methods follow no symbolic link in the last two parts of a path (`list` and
    `sync_directory`: in the last part). Links further up in a path should be resolved beforehand,
    with `resolve`. Every method raises the OSError of the system call.
    """

    def resolve(self, path: str) -> str:
        """Returns the path without symbolic links.

        The other methods should get paths that begin with such a resolved path.
        """
        return os.path.realpath(path)

    def make_directory(self, path: str) -> None:
        """Creates a directory, which must not exist yet; its parent directory must exist."""
        with _parent(path) as (parent, name):
            os.mkdir(name, 0o700, dir_fd=parent)

    def create(self, path: str) -> BinaryIO:
        """Creates a file, which must not exist yet, for unbuffered writing and reading."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with _parent(path) as (parent, name):
            return os.fdopen(os.open(name, flags, 0o600, dir_fd=parent), "r+b", buffering=0)

    def open(self, path: str) -> BinaryIO:
        """Opens a regular file for unbuffered reading; any other kind of file raises an OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        with _parent(path) as (parent, name):
            descriptor = os.open(name, flags, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{path} is no regular file")
        return os.fdopen(descriptor, "rb", buffering=0)

    def size(self, path: str) -> int:
        """Returns the size of a file in bytes."""
        with _parent(path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_size

    def sync(self, file: BinaryIO) -> None:
        """Writes the file's content to the disk, and returns when it has been written (`fsync`)."""
        os.fsync(file.fileno())

    def pass_on(self, file: BinaryIO) -> None:
        """Asks the system to write the file's cached pages, and to drop the pages already written.

        Called several times while a large file is written. Otherwise the whole file would be in the
        page cache, and allocating so many pages can take longer than writing the file. The system
        may ignore the request; use `sync` where the content must be on disk.
        """
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def sync_directory(self, path: str) -> None:
        """Writes a directory's entries to the disk, and returns when this is done (`fsync`)."""
        with _opened(path) as descriptor:
            os.fsync(descriptor)

    def list(self, path: str) -> list[str]:
        """Returns the names in a directory, sorted."""
        with _opened(path) as descriptor:
            return sorted(os.listdir(descriptor))

    def is_directory(self, path: str) -> bool:
        """Returns whether the path is a directory, and not a link to one."""
        return stat.S_ISDIR(_mode(path))

    def is_file(self, path: str) -> bool:
        """Returns whether the path is a regular file, and not a link to one."""
        return stat.S_ISREG(_mode(path))

    def rename(self, old: str, new: str) -> None:
        """Renames a file or directory atomically; an empty directory `new` is replaced."""
        with _parent(old) as (parent, name), _parent(new) as (other, new_name):
            os.rename(name, new_name, src_dir_fd=parent, dst_dir_fd=other)

    def remove(self, path: str) -> None:
        """Deletes a file. If the path is a link, the link is deleted and not its target."""
        with _parent(path) as (parent, name):
            os.unlink(name, dir_fd=parent)

    def remove_directory(self, path: str) -> None:
        """Deletes an empty directory."""
        with _parent(path) as (parent, name):
            os.rmdir(name, dir_fd=parent)


@contextmanager
def _opened(path: str) -> Iterator[int]:
    """Context in which a directory is open; yields the file descriptor of the directory.

    A symbolic link to a directory raises an OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _parent(path: str) -> Iterator[tuple[int, str]]:
    """Context in which the parent directory of a path is open.

    Yields:
        The file descriptor of the parent directory, and the last part of the path.
    """
    folder, name = os.path.split(path)
    with _opened(folder or ".") as descriptor:
        yield descriptor, name


def _mode(path: str) -> int:
    """Returns the mode (type and permissions) of a path; 0 if the path does not exist.

    A link is not followed: the mode is that of the link itself.
    """
    try:
        with _parent(path) as (parent, name):
            return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0
