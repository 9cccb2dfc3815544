"""The door to the file system: every write of a snapshot goes through it.

Tests put another one in its place, which dies at the n-th operation or forgets what was not synced.
"""

from __future__ import annotations

import os
import stat
from typing import BinaryIO


class Files:
    """The real file system.

    Files are private to the user (mode 0600, directories 0700) and symbolic links are not followed.
    Every method raises OSError as the system does.
    """

    def make_directory(self, path: str) -> None:
        """Makes a directory whose parent exists; it must not exist yet."""
        os.mkdir(path, 0o700)

    def create(self, path: str) -> BinaryIO:
        """Makes a file that does not exist yet, for writing and reading, unbuffered."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)

    def open(self, path: str) -> BinaryIO:
        """Opens a regular file for reading, unbuffered."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"{path} is no regular file")
        return os.fdopen(descriptor, "rb", buffering=0)

    def size(self, path: str) -> int:
        """Size of a file in bytes."""
        return os.lstat(path).st_size

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
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        return sorted(os.listdir(path))

    def is_directory(self, path: str) -> bool:
        """Whether there is a directory, not a link to one."""
        try:
            return stat.S_ISDIR(os.lstat(path).st_mode)
        except FileNotFoundError:
            return False

    def rename(self, old: str, new: str) -> None:
        """Renames a file or a directory, at once; an empty directory `new` is replaced."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        """Removes a file."""
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        """Removes an empty directory."""
        os.rmdir(path)
