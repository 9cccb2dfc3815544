"""The event files of one training: which they are, and how they are cut back to a snapshot.

TensorBoard shows every point of every event file in a folder. If training resumes from a snapshot,
it writes again what it had written after the snapshot, and TensorBoard would show these points
twice. So before training goes on, the files are truncated to their sizes at the snapshot.

The files of a training are known by a mark in their names, a random string. Files with another
mark, or with none, belong to others, and are left as they are.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import shutil
import stat
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

RUNS = ("train", "validation")
"""The folders of a log directory, each of which TensorBoard shows as a run of its own."""


class EventFiles:
    """The event files that one training writes to the folders of a log directory.

    Args:
        log_dir: The log directory.
        mark: The mark in the names of the files, which is 32 hexadecimal digits; by default a new
            random one.

    Raises:
        ValueError: If `mark` has another form.
    """

    def __init__(self, log_dir: str, mark: str | None = None) -> None:
        self.log_dir = log_dir
        self.mark = uuid.uuid4().hex if mark is None else mark
        check_mark(self.mark, "`mark`")

    @property
    def suffix(self) -> str:
        """The end of the files' names, for `tf.summary.create_file_writer`."""
        return event_suffix(self.mark)

    def folder(self, run: str) -> str:
        """Returns the folder of a run, which is one of `RUNS`."""
        return os.path.join(self.log_dir, run)

    def paths(self) -> list[str]:
        """Returns the sorted paths of the files that exist."""
        pattern = f"events.out.tfevents.*{self.suffix}"
        return sorted(
            path
            for run in RUNS
            for path in glob.glob(os.path.join(glob.escape(self.folder(run)), pattern))
        )

    def sizes(self) -> dict[str, int]:
        """Returns the size of each file in bytes, by its path in the log directory.

        The writers of the files must have been flushed.
        """
        return {os.path.relpath(path, self.log_dir): os.path.getsize(path) for path in self.paths()}

    def rewind(self, sizes: Mapping[str, int], paths: Sequence[str] | None = None) -> None:
        """Truncates files to earlier sizes, and deletes files that did not exist then.

        No writer of these files may be open.

        Args:
            sizes: What `sizes` returned at the snapshot.
            paths: The files, from `paths`; by default all files of this training.
        """
        for path in self.paths() if paths is None else paths:
            kept = sizes.get(os.path.relpath(path, self.log_dir))
            if kept is None:
                remove(path)
            else:
                shorten(path, kept)


def check_mark(value: Any, place: str) -> None:
    """Checks that a value which was read from a file is a mark: 32 hexadecimal digits.

    It is a part of the names of files that may be shortened or deleted, so it must be one that kfit
    makes, and not a path or a pattern.

    Args:
        value: The value.
        place: Its place in the file, for the error message.

    Raises:
        ValueError: If it is none.
    """
    if not (isinstance(value, str) and re.fullmatch("[0-9a-f]{32}", value)):
        raise ValueError(f"{place} is {value!r:.50}; expected 32 hexadecimal digits")


def event_suffix(mark: str) -> str:
    """Returns the suffix of the names of event files, which contains a mark.

    The mark is a random string that identifies the training which writes the files.
    """
    return f".kfit-{mark}.v2"


def remove(path: str) -> None:
    """Deletes a regular file; does nothing if the path is a link or a directory."""
    if stat.S_ISREG(os.lstat(path).st_mode):
        os.unlink(path)


def shorten(path: str, size: int) -> None:
    """Truncates a file to `size` bytes, if it is a regular file with more bytes.

    If the file has several hard links, it is copied first, so that the other paths keep the whole
    content. The file must not be open.
    """
    have_to_itself(path)
    found = os.lstat(path)
    if stat.S_ISREG(found.st_mode) and found.st_size > size:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def have_to_itself(path: str) -> None:
    """Replaces a file that has several hard links (as after `cp -l`) by a copy.

    So later writes to this path do not change the content at the other paths. Any other file is
    left as it is.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
        aside = f"{path}.kfit-tmp-{uuid.uuid4().hex}"
        try:
            shutil.copy2(path, aside, follow_symlinks=False)
            os.replace(aside, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            raise


def elements(value: Any) -> list[tuple[str, float]]:
    """Returns the numbers of a value, each with what is added to the name of its curve."""
    array = np.asarray(value)
    if array.ndim == 0:
        return [("", float(array))]
    return [
        ("/" + "/".join(map(str, index)), float(number)) for index, number in np.ndenumerate(array)
    ]
