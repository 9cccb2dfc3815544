"""What kfit did not write: recognised before anything is overwritten or deleted."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Callable


class ForeignFileError(ValueError):
    """Where kfit would write or delete there is something that kfit did not write."""


def check_owner(argument: str, directory: str, geteuid: Callable[[], int] | None = None) -> None:
    """Refuses a directory, or a link to one, that a stranger may have put there.

    Whoever owns a directory can exchange what is in it. In a folder that everybody may write to,
    such as `/tmp`, that can be anybody who knew its name beforehand. Elsewhere somebody has put it
    there who may: the volume of a user on which root trains in a container, the share of a group.
    The system's administrator may everywhere; and where a file system gives all files to one user,
    as network file systems can, that user is this one.

    Args:
        argument: The name of the argument that gave the directory, for the error.
        directory: The directory; it exists.
        geteuid: Returns the user that this process runs as.

    Raises:
        ForeignFileError: If it belongs to somebody else.
        OSError: If it cannot be looked at, or nothing can be made in it.
    """
    own = (geteuid or os.geteuid)()
    owners = {os.lstat(directory).st_uid, os.stat(directory).st_uid} - {own, 0}
    if not owners or not (public := _folder_of_everybody(directory)):
        return
    if owners - {_owner_of_a_new_file(directory)}:
        other = min(owners)
        raise ForeignFileError(
            f"`{argument}` must be a directory of the user who trains, or lie where strangers "
            f"cannot put one. Received: {directory!r}, which belongs to user {other}; this process "
            f"runs as user {own}, and everybody may write to {public!r}. Give a directory "
            "elsewhere, or a new one, which kfit makes; or change its owner with `chown`."
        )


def _folder_of_everybody(directory: str) -> str | None:
    """The nearest folder above a directory, or above what a link to it names, open to everybody."""
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
