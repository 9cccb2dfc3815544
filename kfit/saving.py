"""Gives each task a path to write to, so that several tasks can save without damaging a file.

Some ways of saving are collectives, which all tasks must call. But if two tasks wrote to the same
path, they would damage the file. So every task gets a path of its own. What the chief (the first
task) writes appears at the user's path, in one atomic step. The other tasks get a temporary path,
which is removed. A program that calls `model.save` or uses `tf.train.CheckpointManager` itself does
it like this:

    with kfit.saving.write_path("model.keras") as path:
        model.save(path)

    manager = tf.train.CheckpointManager(
        checkpoint, kfit.saving.write_directory("checkpoints"), max_to_keep=3
    )

`write_path` replaces an existing file or directory only in the cases that it lists.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from kfit.cluster.resolvers import current_cluster
from kfit.heartbeat.aside import PREFIX, root_aside
from kfit.heartbeat.tracebacks import each_for_user, for_user
from kfit.user_files.replacement import check_replaceable, keep_mode, replace

_ENDING = 40
"""The last characters of a file's name that its temporary name has as well."""


def is_chief() -> bool:
    """Returns whether this process is the one that writes files for all tasks.

    The result is True in a process without a cluster, on the chief, and on worker 0 of a cluster
    without a chief. It is False on all other tasks. An evaluator is one of these: the results that
    it writes in `kfit.train_and_evaluate` are its own.
    """
    cluster = current_cluster()
    return cluster is None or cluster.is_chief


def is_evaluator() -> bool:
    """Returns whether this process only evaluates: what it finds is written by no other task."""
    cluster = current_cluster()
    return cluster is not None and cluster.is_evaluator


@contextmanager
@each_for_user
def write_path(path: str | os.PathLike[str], argument: str = "path") -> Iterator[str]:
    """Context that yields a path to which every task can save one file or directory.

    All tasks that save must enter the context. On the chief the path is a temporary one beside
    `path`. When the context ends, what was written there is synced to the disk and replaces `path`
    atomically: readers see either the old file or the complete new one, also after a crash. The new
    one has the permissions of the old one. (A
    directory is replaced atomically only if the system can exchange two directories, as Linux can.)
    If an error is raised in the context, `path` is unchanged. On other tasks the path is in a
    temporary directory, which is removed at the end.

    To protect other data, an existing file or directory at `path` is replaced only in these cases.
    A file may replace a file; if `path` ends in `.keras` or `.h5`, the old file must be a model
    file of this kind, or empty. A file or a directory may replace an empty directory. A directory
    may replace a SavedModel, or an old directory if every path in the old one also exists in the
    new one. Read-only files, symbolic links, mount points, the home directory, the current
    directory and the directories that contain these two are never replaced.

    Args:
        path: Where the file or directory should be in the end. The temporary path has the same
            ending, since Keras derives the format from the ending.
        argument: The name of the argument in which the user gave the path, for error messages.

    Yields:
        The path to write to.

    Raises:
        ForeignFileError: On the chief, if what exists at `path` must not be replaced. This class of
            errors is a ValueError.
    """
    if is_chief():
        with whole_path(path, argument) as aside:
            yield aside
        return
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=root_aside()) as folder:
        aside = os.path.join(folder, os.path.basename(os.path.abspath(os.fspath(path))))
        with _naming(path, aside):
            yield aside


@contextmanager
def whole_path(path: str | os.PathLike[str], argument: str = "path") -> Iterator[str]:
    """Context that yields a temporary path; when it ends, what was written there replaces `path`.

    The replacement is atomic. This is what `write_path` does on the chief, but it works on any
    task, such as an evaluator.

    Args:
        path: As for `write_path`.
        argument: As for `write_path`.

    Yields:
        The path to write to.

    Raises:
        ForeignFileError: If what exists at `path` must not be replaced.
    """
    check_replaceable(path, argument=argument)
    target = os.path.abspath(os.fspath(path))
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with _beside(target) as aside:
        with _naming(path, aside):
            yield aside
        _sync_tree(aside)
        replace(aside, target, argument=argument)
        _sync(os.path.dirname(target))


@for_user
def write_directory(path: str | os.PathLike[str]) -> str:
    """Returns a directory to which this task can write until the process ends.

    Every task that writes must call this, since only the chief may write to the user's directory.

    Args:
        path: The user's directory, such as one for checkpoints, to which the chief writes.

    Returns:
        `path` on the chief. On other tasks, a temporary directory that is removed when the process
        ends.
    """
    if is_chief():
        return os.fspath(path)
    aside = tempfile.mkdtemp(prefix=PREFIX, dir=root_aside())
    atexit.register(_remove_at_end, aside, os.getpid())
    return aside


def saving_whole(save: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Keras' `Model.save` or `Model.save_weights`, so that tasks do not damage each other's.

    A program that does not know kfit calls these methods on every task, with the same path at the
    same time, and then may load the file. With the wrapper each task writes its file beside the
    path, and puts it there in one step: all files are equal, and none is ever incomplete.

    Args:
        save: Keras' method.

    Returns:
        The method. It is Keras' own if there is no cluster, if the file must not be overwritten, or
        if not a single file is written.
    """

    @wraps(save)
    def method(
        model: Any, filepath: Any, overwrite: bool = True, *others: Any, **options: Any
    ) -> Any:
        is_one_file = (
            not others
            and isinstance(filepath, str | os.PathLike)
            and "://" not in os.fspath(filepath)
            and os.fspath(filepath).endswith((".keras", ".h5", ".hdf5"))
            and not os.path.isdir(filepath)
            and all(options.get(name) is None for name in ("zipped", "max_shard_size"))
        )
        if not (overwrite and is_one_file) or current_cluster() is None:
            return save(model, filepath, overwrite, *others, **options)
        target = os.path.realpath(filepath)
        with _beside(target) as aside:
            with _naming(filepath, aside):
                save(model, aside, overwrite, **options)
            keep_mode(aside, target)
            os.replace(aside, target)
        return None

    return method


@contextmanager
def _beside(target: str) -> Iterator[str]:
    """Context that yields a path beside `target`; what is still there at its end is removed."""
    folder, name = os.path.split(target)
    # Keras derives the format from the ending. The whole name may be as long as names can be.
    aside = os.path.join(folder, f".kfit-tmp-{uuid.uuid4().hex}-{name[-_ENDING:]}")
    try:
        yield aside
    finally:
        _remove(aside)


@contextmanager
def _naming(path: str | os.PathLike[str], aside: str) -> Iterator[None]:
    """Context in which errors that name the temporary path `aside` name the user's path instead."""
    own = os.fspath(path)
    try:
        yield
    except Exception as error:
        error.args = tuple(
            each.replace(aside, own) if isinstance(each, str) else each for each in error.args
        )
        if isinstance(error, OSError) and error.filename == aside:
            error.filename = own
        raise


def _sync_tree(path: str) -> None:
    """Syncs a file, or a directory with all files in it, to the disk."""
    for folder, _, names in os.walk(path):
        for name in names:
            _sync(os.path.join(folder, name))
        _sync(folder)
    if not os.path.isdir(path):
        _sync(path)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_at_end(directory: str, process: int) -> None:
    """Removes a directory at the end of the process that has made it, not of a forked one.

    Args:
        directory: The path of the directory.
        process: The ID of the process that has made it.
    """
    if os.getpid() == process:
        shutil.rmtree(directory, ignore_errors=True)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
