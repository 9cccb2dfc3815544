"""Replaces an old file or directory by a new one, if nothing but a saved model is lost."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import shutil
import stat
from collections.abc import Collection
from typing import Literal, TypeAlias

from kfit.argument_checks import check_no_url
from kfit.user_files.ownership import ForeignFileError

Kind: TypeAlias = Literal["file", "directory"]

_BEGINS = {".keras": b"PK\x03\x04", ".h5": b"\x89HDF\r\n\x1a\n"}
"""The first bytes of a model file, by its extension."""
_SAVED_MODEL = re.compile(
    r"saved_model\.pb|fingerprint\.pb|keras_metadata\.pb|debug(/saved_model_debug_info\.pb)?"
    r"|variables(/variables\.(index|data-\d{5}-of-\d{5}))?|assets"
)
"""Matches the paths that TensorFlow creates in a SavedModel, except the assets."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


def check_replaceable(
    path: str | os.PathLike[str],
    kind: Kind | None = None,
    *,
    argument: str = "path",
    brings: Collection[str] = (),
) -> None:
    """Raises an error if writing to a path would delete data other than a saved model.

    A path may be written to if it

    - does not exist, or is an empty directory;
    - is a writable file, and a file will be written; a `.keras` or `.h5` file must also be empty or
      begin like a model file;
    - is a SavedModel, and a directory will be written;
    - is a directory, and the new directory contains all paths that the old one contains.

    Symbolic links, mount points, the current directory, the home directory and the directories
    above these two are never accepted.

    If neither `kind` nor `brings` is known, directories with other contents are accepted, too. They
    are checked when the new file or directory is moved to the path (`replace`).

    Args:
        path: The path that is to be written.
        kind: Whether a file or a directory will be written, if known.
        argument: The name of the argument with the path, for the error message.
        brings: The relative paths in the new directory, if known.

    Raises:
        ForeignFileError: If the existing file or directory must not be replaced.
        ValueError: If the path is a URL.
    """
    check_no_url(argument, path)
    target = os.path.abspath(os.fspath(path))
    try:
        mode = os.lstat(target).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if kind is None and target.endswith(tuple(_BEGINS)):
        kind = "file"
    if stat.S_ISLNK(mode):
        reason = f"a symbolic link; give the path it leads to, {os.path.realpath(target)!r}"
    elif stat.S_ISDIR(mode):
        reason = _why_directory_stays(target, kind, brings)
    elif not stat.S_ISREG(mode):
        reason = "neither a file nor a directory"
    else:
        reason = _why_file_stays(target, mode, kind)
    if reason:
        raise ForeignFileError(
            f"`{argument}` must be a path where nothing is lost: where there is nothing, a model "
            f"that was saved before, or an empty directory. Received: {os.fspath(path)!r}, which "
            f"is {reason}. Give another path, or move away what is there."
        )


def replace(aside: str, target: str, *, argument: str = "path") -> None:
    """Moves a new file or directory from `aside` to `target`, and replaces an old one there.

    Replacing a file is atomic. Replacing a directory is atomic if the system can exchange two
    directories, as Linux can; the old directory is then at `aside` afterwards. On other systems the
    old directory is moved away first. It is deleted when the new directory is at `target`, or moved
    back if the new directory cannot be moved.

    Args:
        aside: The path of the new file or directory, on the same file system as `target`.
        target: The path to which the new file or directory is moved.
        argument: The name of the argument with the target, for the error message.

    Raises:
        ForeignFileError: If the old file or directory must not be replaced.
        OSError: If the move fails; the old file or directory is still at `target` then.
    """
    is_new_directory = os.path.isdir(aside)
    brings = paths_in(aside) if is_new_directory else ()
    kind: Kind = "directory" if is_new_directory else "file"
    check_replaceable(target, kind, argument=argument, brings=brings)
    keep_mode(aside, target)
    if not os.path.isdir(target):
        os.replace(aside, target)
    elif not _exchange(aside, target):
        old = f"{aside}.old"
        os.rename(target, old)
        try:
            os.rename(aside, target)
        except BaseException:
            os.rename(old, target)
            raise
        shutil.rmtree(old)


def keep_mode(aside: str, target: str) -> None:
    """Gives a new file or directory the permissions of the old one that it is about to replace.

    Otherwise other users could read a model that only its owner could read before.

    Args:
        aside: The path of the new file or directory.
        target: The path of the old one. If nothing, or something of another kind, is there, nothing
            is changed.
    """
    try:
        old = os.lstat(target).st_mode
    except FileNotFoundError:
        return
    descriptor = os.open(aside, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        new = os.fstat(descriptor).st_mode
        if stat.S_IFMT(old) == stat.S_IFMT(new) and old != new:
            os.fchmod(descriptor, stat.S_IMODE(old))
    finally:
        os.close(descriptor)


def paths_in(directory: str) -> set[str]:
    """Returns the relative paths of everything in a directory; does not follow symbolic links."""
    return {
        os.path.relpath(os.path.join(folder, name), directory)
        for folder, folders, files in os.walk(directory)
        for name in (*folders, *files)
    }


def _why_directory_stays(target: str, kind: Kind | None, brings: Collection[str]) -> str:
    """Returns why a directory must not be replaced, for an error message; "" if it may be replaced.

    Args:
        target: The path of the existing directory.
        kind: What is to be written there, a "file" or a "directory"; None if not known.
        brings: The relative paths in the new directory; empty if they are not known. The same paths
            in the existing directory are no reason to keep it.
    """
    for path, what in (
        (os.getcwd(), "the current directory, or one above it"),
        (os.path.expanduser("~"), "the home directory, or one above it"),
    ):
        if os.path.commonpath([os.path.realpath(target), os.path.realpath(path)]) == (
            os.path.realpath(target)
        ):
            return what
    if os.path.ismount(target):
        return "where a file system is mounted"
    there = paths_in(target)
    if not there:
        return ""
    if kind == "file":
        return f"a directory that holds {_some(there)}"
    foreign = _not_of_a_saved_model(target, there) - set(brings)
    if not foreign or (kind is None and not brings):
        return ""
    return f"a directory that holds {_some(foreign)}"


def _not_of_a_saved_model(target: str, there: set[str]) -> set[str]:
    """Returns the paths in a directory that are not part of a SavedModel.

    If the directory is not a SavedModel, the result has all its paths.

    Args:
        target: The directory.
        there: The relative paths of everything in the directory.
    """
    model = os.path.join(target, "saved_model.pb")
    if not os.path.isfile(model):
        return there
    with open(model, "rb") as file:
        content = file.read()
    return {
        path
        for path in there
        if os.path.islink(os.path.join(target, path))
        or not (
            _SAVED_MODEL.fullmatch(path)
            # An asset is part of the model if `saved_model.pb` contains its name.
            or (path.startswith("assets/") and os.path.basename(path).encode() in content)
        )
    }


def _why_file_stays(target: str, mode: int, kind: Kind | None) -> str:
    """Returns why a file must not be replaced, for an error message; "" if it may be replaced.

    Args:
        target: The path of the file.
        mode: The file's mode, as of `os.stat`.
        kind: What is to be written there, a "file" or a "directory"; None if not known.
    """
    if kind == "directory":
        return "a file"
    if not mode & stat.S_IWUSR:
        return "a file that is read-only"
    ending = os.path.splitext(target)[1]
    if ending in _BEGINS:
        with open(target, "rb") as file:
            begin = file.read(len(_BEGINS[ending]))
        if begin and begin != _BEGINS[ending]:
            return "not a model file, although its name has the extension of one"
    return ""


def _some(paths: Collection[str]) -> str:
    first = ", ".join(map(repr, sorted(paths)[:3]))
    return first if len(paths) <= 3 else f"{first} and {len(paths) - 3} more"


def _exchange(one: str, other: str) -> bool:
    """Exchanges the files or directories at two paths atomically.

    Returns:
        False if the system cannot do so; then nothing is changed.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    paths = (_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other))
    if renameat2(*paths, _RENAME_EXCHANGE) == 0:
        return True
    failed = ctypes.get_errno()
    if failed in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(failed, os.strerror(failed), other)
