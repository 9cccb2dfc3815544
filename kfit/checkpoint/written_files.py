"""What Keras' CSVLogger and TensorBoard have written, taken back to what it was at a snapshot.

Rows and events after the snapshot will be written again, so they are taken out of the files: those
of this run, and no others. The event files of a run have its mark in their names. A CSV file has no
room for one, so its rows are looked at: they must be those that this run would write after the
snapshot. What somebody else may have written is left, and said.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import hashlib
import io
import os
import shutil
import stat
import uuid
import warnings
from typing import Any

import keras
import tensorflow as tf

from kfit.internals.callbacks import (
    counted_batches,
    event_writers,
    set_summary_module,
    summary_module,
)

State = dict[str, Any]

_COMPARED = 1 << 16
"""Bytes before the place of a snapshot by which a CSV file is known again."""


def rows_of(callback: keras.callbacks.CSVLogger) -> State:
    """How far a CSVLogger has written its file."""
    file = callback.csv_file
    if file is None or file.closed:
        return {"bytes": None, "sha256": None, "keys": callback.keys}
    file.flush()
    size = file.tell()
    return {"bytes": size, "sha256": _digest(callback, size), "keys": callback.keys}


def rewind_rows(callback: keras.callbacks.CSVLogger, state: State, epoch: int) -> None:
    """Takes out of a CSVLogger's file the rows that this run wrote after a snapshot.

    Args:
        callback: The callback; its file is open.
        state: What `rows_of` returned.
        epoch: The epoch that is trained next, whose row will be written again.
    """
    callback.keys = state["keys"]
    kept, file = state["bytes"], callback.csv_file
    if kept is None or file is None or file.closed:
        return
    file.flush()
    if os.fstat(file.fileno()).st_size <= kept:
        return  # no row came after it, or the file is another one
    reason = _why_rows_stay(callback, state, epoch)
    if reason:
        warnings.warn(
            f"{callback.filename} is not cut back to the place of the snapshot, since {reason}: "
            "rows of epochs that are trained again may be there twice.",
            stacklevel=2,
        )
        return
    os.ftruncate(file.fileno(), kept)
    file.seek(0, os.SEEK_END)
    callback.append_header = kept == 0


def mark_events(callback: keras.callbacks.TensorBoard, mark: str | None = None) -> None:
    """Has a TensorBoard callback put a mark into the names of the event files that it makes.

    Args:
        callback: The callback.
        mark: The mark; None for a new one.
    """
    set_summary_module(callback, _MarkedSummary(mark or uuid.uuid4().hex))


def take_up_events(callback: keras.callbacks.TensorBoard, mark: str) -> list[str]:
    """Has a TensorBoard callback go on with the mark of an earlier start of its run.

    What it has written since this start, under a mark of its own, is the model's graph at most,
    which an earlier start has written.

    Args:
        callback: The callback, before `on_train_begin`.
        mark: The mark.

    Returns:
        The event files that earlier starts have made.
    """
    for writer in event_writers(callback).values():
        writer.close()
    for path in event_files(callback):
        remove(path)
    event_writers(callback).clear()
    mark_events(callback, mark)
    return event_files(callback)


def events_of(callback: keras.callbacks.TensorBoard) -> State:
    """How far a TensorBoard callback has come, and has written its event files."""
    for writer in event_writers(callback).values():
        writer.flush()
    train_batch, test_batch = counted_batches(callback)
    return {
        "train_batch": train_batch,
        "test_batch": test_batch,
        "mark": _mark_of(callback),
        "files": {
            os.path.relpath(path, callback.log_dir): os.path.getsize(path)
            for path in event_files(callback)
        },
    }


def event_files(callback: keras.callbacks.TensorBoard) -> list[str]:
    """The event files with the callback's mark, in the folders where it writes."""
    pattern = f"events.out.tfevents.*{event_suffix(_mark_of(callback))}"
    return sorted(
        path
        for folder in ("train", "validation")
        for path in glob.glob(os.path.join(glob.escape(callback.log_dir), folder, pattern))
    )


def rewind_events(callback: keras.callbacks.TensorBoard, paths: list[str], state: State) -> None:
    """Takes out of event files what was written after a snapshot.

    Args:
        callback: The callback.
        paths: The files that earlier starts of this run have made.
        state: What `events_of` returned.
    """
    for path in paths:
        kept = state["files"].get(os.path.relpath(path, callback.log_dir))
        if kept is None:
            remove(path)
        else:
            shorten(path, kept)


class _MarkedSummary:
    """`tensorflow.summary`, with a mark in the names of event files."""

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __getattr__(self, name: str) -> Any:
        return getattr(tf.summary, name)

    def create_file_writer(self, logdir: str) -> Any:
        return tf.summary.create_file_writer(logdir, filename_suffix=event_suffix(self.mark))


def event_suffix(mark: str) -> str:
    """How the names of the event files with a mark end."""
    return f".kfit-{mark}.v2"


def _mark_of(callback: keras.callbacks.TensorBoard) -> str:
    return str(summary_module(callback).mark)


def remove(path: str) -> None:
    """Deletes a file, unless it is something else."""
    if stat.S_ISREG(os.lstat(path).st_mode):
        os.unlink(path)


def shorten(path: str, size: int) -> None:
    """Takes away the end of a file that nobody has open; a link stays as it is."""
    have_to_itself(path)
    found = os.lstat(path)
    if stat.S_ISREG(found.st_mode) and found.st_size > size:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.ftruncate(descriptor, size)
        finally:
            os.close(descriptor)


def have_to_itself(path: str) -> None:
    """Makes a file of its own of a name that shares one with other names (`cp -l`).

    Whoever has the other names finds there what was there, whatever is written here from now on.
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


def _digest(callback: keras.callbacks.CSVLogger, size: int) -> str | None:
    """What tells whether a CSV file is the same up to a place; None if it is not to be read."""
    content = _content(callback, max(0, size - _COMPARED), size)
    return None if content is None else hashlib.sha256(content).hexdigest()


def _content(
    callback: keras.callbacks.CSVLogger, begin: int, end: int | None = None
) -> bytes | None:
    """A part of the file that the callback writes; None if its name is that of another by now."""
    try:
        with open(callback.filename, "rb") as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.fstat(callback.csv_file.fileno())):
                return None
            file.seek(begin)
            return file.read(-1 if end is None else end - begin)
    except FileNotFoundError:
        return None


def _why_rows_stay(callback: keras.callbacks.CSVLogger, state: State, epoch: int) -> str:
    """Why what a file holds after a snapshot may be somebody else's; "" if it is this run's."""
    kept = state["bytes"]
    if os.fstat(callback.csv_file.fileno()).st_nlink > 1:
        return "the file has another name as well (a hard link)"
    digest = _digest(callback, kept)
    if digest is None or digest != state["sha256"]:
        return "what was before it has been changed"
    tail = _content(callback, kept)
    assert tail is not None
    try:
        ours = _are_rows_from(tail.decode(), callback.sep, state["keys"], epoch, kept == 0)
    except (UnicodeDecodeError, csv.Error):
        ours = False
    return "" if ours else "another run may have written what comes after it"


def _are_rows_from(
    text: str, sep: str, keys: list[str] | None, epoch: int, has_header: bool
) -> bool:
    """Whether a text is the rows of one epoch after the other, the last one whole or cut off.

    Args:
        text: The text.
        sep: What separates columns.
        keys: The columns after that of the epoch, where they were known at the snapshot.
        epoch: The first epoch.
        has_header: Whether a header comes first.
    """
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=sep))
    if has_header:
        header, *rows = rows
        if header[:1] != ["epoch"]:
            return False
    cut_off = text.rpartition("\n")[2]
    if cut_off:
        rows.pop()
        number = str(epoch + len(rows))
        if not (number.startswith(cut_off) or cut_off.startswith(number + sep)):
            return False
    columns = {len(row) for row in rows} if keys is None else {1 + len(keys)}
    return len(columns) <= 1 and all(
        row[:1] == [str(number)] and len(row) in columns for number, row in enumerate(rows, epoch)
    )
