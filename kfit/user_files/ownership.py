"""Detects files and directories of other users and programs before kfit writes or deletes there."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable


class ForeignFileError(ValueError):
    """The error if kfit would replace or delete a file or directory of another program or user."""


def check_owner(argument: str, directory: str, geteuid: Callable[[], int] | None = None) -> None:
    """Raises an error if an untrusted user may have created a directory, or a link to it.

    The owner of a directory can replace the files in it. Below a folder that every user may write
    to, such as `/tmp`, any user who knew the directory's name could have created it beforehand. So
    the owner of a directory there must be root or the user of this process. Some network file
    systems assign all new files to one user; this user is allowed, too.

    In all other places any owner is allowed, since only users with permission can have created the
    directory. For example, a container that runs as root may use a volume of a different user, and
    the members of a group may share a directory.

    Args:
        argument: The name of the argument with the directory, for the error message.
        directory: The path of the directory, which must exist.
        geteuid: A function that returns the ID of the user of this process; by default
            `os.geteuid`.

    Raises:
        ForeignFileError: If the owner is not allowed.
        OSError: If the directory cannot be read, or no file can be created in it.
    """
    own = (geteuid or os.geteuid)()
    owners = {os.lstat(directory).st_uid, os.stat(directory).st_uid} - {own, 0}
    if not owners or not (public := _folder_of_everybody(directory)):
        return
    if owners - {_owner_of_a_new_file(directory)}:
        other = min(owners)
        raise ForeignFileError(
            f"`{argument}` must belong to the user of this process, or be where other users cannot "
            f"create it. Received: {directory!r}, which belongs to user {other}; this process "
            f"runs as user {own}, and everybody may write to {public!r}. Give a directory "
            "elsewhere, or a new one, which kfit creates; or change its owner with `chown`."
        )


def _folder_of_everybody(directory: str) -> str | None:
    """Returns the nearest parent directory in which every user may write, or None.

    Args:
        directory: The directory whose parents are checked. If it is a link, the parents of the link
            come first, then those of its target.
    """
    for path in (os.path.abspath(directory), os.path.realpath(directory)):
        while (above := os.path.dirname(path)) != path:
            path = above
            if os.stat(path).st_mode & stat.S_IWOTH:
                return path
    return None


def _owner_of_a_new_file(directory: str) -> int:
    path = os.path.join(directory, f".kfit-owner-{uuid.uuid4().hex}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        os.unlink(path)
