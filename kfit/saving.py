"""Saving from many tasks: the chief writes the user's path, and what appears there is whole.

For users' own `model.save`, `tf.train.Checkpoint` and `tf.train.CheckpointManager`:

    with kfit.saving.write_path("model.keras") as path:
        model.save(path)

    manager = tf.train.CheckpointManager(
        checkpoint, kfit.saving.write_directory("checkpoints"), max_to_keep=3
    )

Some ways of saving need all tasks to take part, and two tasks that write to one path damage what is
there. So every task gets a path: the chief its own, the others a temporary one that is removed.
What is replaced is a model that was saved before, or its like (`replacement`), and nothing else.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from kfit.cluster.resolvers import current_cluster
from kfit.user_files.replacement import check_replaceable, replace


def is_chief() -> bool:
    """Whether this process writes for all: it is alone, or the chief, or worker 0 without one.

    An evaluator does not; what it finds `kfit.train_and_evaluate` writes.
    """
    cluster = current_cluster()
    return cluster is None or cluster.is_chief


@contextmanager
def write_path(path: str | os.PathLike[str], argument: str = "path") -> Iterator[str]:
    """A path to save one file or directory to, on every task.

    On the chief it lies beside `path`, and takes its place when the block is done: at once, after
    everything was synced to the disk. Readers find the old or the new, whole, also after a crash.
    When the block fails, `path` is as it was. On other tasks it lies in a temporary directory,
    which is removed.

    What is there is replaced only if nothing is lost: a model's file (`.keras`, `.h5`) or another
    file by a file, a SavedModel by a directory, an empty directory, and a directory by one that has
    a file for each of its own; never a link, the current directory, or one above it.

    Args:
        path: Where the file or directory should be. Its ending stays, for Keras looks at it.
        argument: The name of the argument that gave the path, for errors.

    Yields:
        The path to write to.

    Raises:
        ForeignFileError: On the chief, if what is there must stay; it is a ValueError.
    """
    if is_chief():
        with whole_path(path, argument) as aside:
            yield aside
        return
    with tempfile.TemporaryDirectory(prefix="kfit-not-chief-") as folder:
        yield os.path.join(folder, os.path.basename(os.path.abspath(os.fspath(path))))


@contextmanager
def whole_path(path: str | os.PathLike[str], argument: str = "path") -> Iterator[str]:
    """What `write_path` is on the chief, on whichever task calls it.

    Args:
        path: As for `write_path`.
        argument: As for `write_path`.

    Yields:
        The path to write to.

    Raises:
        ForeignFileError: If what is there must stay.
    """
    check_replaceable(path, argument=argument)
    folder, name = os.path.split(target := os.path.abspath(os.fspath(path)))
    os.makedirs(folder, exist_ok=True)
    aside = os.path.join(folder, f".kfit-tmp-{uuid.uuid4().hex}-{name}")
    try:
        yield aside
        _sync_tree(aside)
        replace(aside, target, argument=argument)
        _sync(folder)
    finally:
        _remove(aside)


def write_directory(path: str | os.PathLike[str]) -> str:
    """A directory to write to for as long as the process lives, on every task.

    Args:
        path: Where the chief should write.

    Returns:
        `path` on the chief; on other tasks a temporary directory, removed when the process ends.
    """
    if is_chief():
        return os.fspath(path)
    aside = tempfile.mkdtemp(prefix="kfit-not-chief-")
    atexit.register(shutil.rmtree, aside, ignore_errors=True)
    return aside


def _sync_tree(path: str) -> None:
    """Syncs a file, or a directory with all that is in it, to the disk."""
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


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)
