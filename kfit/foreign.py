"""What kfit did not write: recognised before anything is overwritten or deleted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable


class ForeignFileError(ValueError):
    """Where kfit would write or delete there is something that kfit did not write."""


def check_owner(argument: str, directory: str, geteuid: Callable[[], int] | None = None) -> None:
    """Refuses a directory, or a link to one, that belongs to another user.

    Whoever owns a directory can exchange what is in it. The system's administrator may; and where
    a file system gives all files to one user, as network file systems can, that user is this one.

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
    if owners and owners - {_owner_of_a_new_file(directory)}:
        other = min(owners)
        raise ForeignFileError(
            f"`{argument}` must be a directory of the user who trains. Received: {directory!r}, "
            f"which belongs to user {other}; this process runs as user {own}. Give a new "
            "directory, such as one inside it, which kfit makes; or change the owner with `chown`."
        )


def _owner_of_a_new_file(directory: str) -> int:
    path = os.path.join(directory, f".kfit-owner-{uuid.uuid4().hex}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o600)
    try:
        return os.fstat(descriptor).st_uid
    finally:
        os.close(descriptor)
        os.unlink(path)
