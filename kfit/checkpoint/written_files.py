"""Truncates the files of Keras' CSVLogger and TensorBoard to their content at a snapshot.

The interrupted run may have written rows and events that are newer than the snapshot. They are
removed before training resumes, since training will write them again. What another training wrote
is kept. The event files of each training have a mark of their own (a random string) in their names.
A CSV file has no mark. Its rows after the snapshot are removed only if they are rows of the epochs
that training will repeat, and if the rows before the snapshot have not been changed. Otherwise the
rows are kept, with a warning.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import uuid
from typing import Any

import keras
import tensorflow as tf

from kfit.checkpoint.event_files import EventFiles, check_mark, event_suffix, remove
from kfit.checkpoint.schema import count, each, each_value, is_a, optional, record
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.callbacks import (
    counted_batches,
    event_writers,
    set_summary_module,
    summary_module,
)

State = dict[str, Any]

_COMPARED = 1 << 16
"""To recognize a CSV file, at most this many bytes before its end at the snapshot are compared."""

_ENDS: dict[str, State] = {}
"""The states of CSVLoggers at the ends of `fit`s that an earlier run has finished, by their files,
until the next `fit` of this process with the file."""

check_rows = record(
    {
        "bytes": optional(count),
        "sha256": optional(is_a(str)),
        "keys": optional(each(is_a(str))),
    }
)
"""Checks that a value which was read from a file can be the state of a CSVLogger."""

check_events = record(
    {"train_batch": count, "test_batch": count, "mark": check_mark, "files": each_value(count)},
    may={"has_graph": is_a(bool), "has_plot": is_a(bool), "steps_before": count},
)
"""Checks that a value which was read from a file can be the state of a TensorBoard callback."""


def rows_of(callback: keras.callbacks.CSVLogger) -> State:
    """Returns the state of a CSVLogger: its columns, and the size and a checksum of its file.

    With this state, `rewind_rows` later removes the rows after a snapshot. If the file is not open,
    size and checksum are None. The checksum is also None if the file was deleted or replaced.
    """
    file = callback.csv_file
    if file is None or file.closed:
        return {"bytes": None, "sha256": None, "keys": callback.keys}
    file.flush()
    size = file.tell()
    return {"bytes": size, "sha256": _digest(callback, size), "keys": callback.keys}


def rewind_rows(callback: keras.callbacks.CSVLogger, state: State, epoch: int | None) -> None:
    """Removes from the file of a CSVLogger the rows that training wrote after a snapshot.

    Called when training resumes from the snapshot, since training will write these rows again. Rows
    that another training may have written are kept, with a warning.

    Args:
        callback: The CSVLogger. If its file is not open, no rows are removed.
        state: The state in the snapshot, which `rows_of` returned.
        epoch: The index of the epoch that is trained next, whose row will be written again. None if
            this training is over: then the rows after the snapshot are of a later `fit`, and stay.
    """
    callback.keys = state["keys"]
    kept, file = state["bytes"], callback.csv_file
    if epoch is None:
        _ENDS[os.path.realpath(callback.filename)] = state
    if epoch is None or kept is None or file is None or file.closed:
        return
    file.flush()
    if os.fstat(file.fileno()).st_size <= kept:
        return  # there are no rows after the snapshot, or it is another file
    reason = _why_rows_stay(callback, state, epoch)
    if reason:
        warn_user(
            f"{callback.filename} is not truncated to its size at the snapshot, since {reason}: "
            "it may contain the rows of some epochs twice."
        )
        return
    os.ftruncate(file.fileno(), kept)
    file.seek(0, os.SEEK_END)
    callback.append_header = kept == 0
    if callback.append_header:
        callback.writer = None  # the next one writes the header


def rewind_rows_of_later_fits(callback: keras.callbacks.CSVLogger, epoch: int | None) -> None:
    """Removes from the file of a CSVLogger what a `fit` wrote that now begins anew.

    Suppose that two `fit`s append to one file, and the program is killed in the second one before
    its first snapshot. When the program runs again, the first `fit` takes no step, and keeps the
    rows of later ones. The second one finds no snapshot, and will write its rows again.

    Args:
        callback: The CSVLogger of a `fit` that begins, which has opened its file.
        epoch: The index of the epoch that is trained next; None if the `fit` resumes from a
            snapshot of its own. Then nothing is removed here.
    """
    end = _ENDS.pop(os.path.realpath(callback.filename), None)
    if end is not None and epoch is not None:
        keys = callback.keys
        rewind_rows(callback, end, epoch)
        callback.keys = keys


def mark_events(callback: keras.callbacks.TensorBoard, mark: str | None = None) -> None:
    """Makes a TensorBoard callback add a mark to the names of the event files that it creates.

    By the mark, a training that resumes recognizes its own event files.

    Args:
        callback: The callback.
        mark: The mark; by default a new random string.
    """
    set_summary_module(callback, _MarkedSummary(mark or uuid.uuid4().hex))


def take_up_events(callback: keras.callbacks.TensorBoard, mark: str) -> list[str]:
    """Makes a TensorBoard callback continue with the mark of the training that is resumed.

    The mark is a string in the names of the event files. The event files that the callback has
    created so far in this `fit` are deleted. They contain at most the model's graph, which is
    already in the earlier files of the training.

    Args:
        callback: The callback, before `on_train_begin`.
        mark: The mark of the resumed training.

    Returns:
        The paths of the event files with this mark.
    """
    _close_writers(callback)
    for path in _files_of(callback).paths():
        remove(path)
    mark_events(callback, mark)
    return _files_of(callback).paths()


def events_of(callback: keras.callbacks.TensorBoard) -> State:
    """Returns the state of a TensorBoard callback, for a snapshot.

    Returns:
        The callback's counts of batches, the size of each of its event files, and the mark by which
        these are recognized (a random string that kfit puts into their names).
    """
    for writer in event_writers(callback).values():
        writer.flush()
    train_batch, test_batch = counted_batches(callback)
    return {
        "train_batch": train_batch,
        "test_batch": test_batch,
        "mark": _files_of(callback).mark,
        "files": _files_of(callback).sizes(),
    }


def rewind_events(
    callback: keras.callbacks.TensorBoard, paths: list[str] | None, state: State
) -> None:
    """Removes the events after a snapshot: truncates event files, and deletes later event files.

    Args:
        callback: The callback.
        paths: The paths of the event files that the resumed training had written, from
            `take_up_events`. None if this training itself goes back: then it is all of its files.
        state: The state in the snapshot, which `events_of` returned. It has the size of each file.
    """
    if paths is None:
        _close_writers(callback)
    _files_of(callback).rewind(state["files"], paths)


def _close_writers(callback: keras.callbacks.TensorBoard) -> None:
    for writer in event_writers(callback).values():
        writer.close()
    event_writers(callback).clear()  # Keras makes new ones, with files of their own


class _MarkedSummary:
    """A replacement of the module `tensorflow.summary`, which marks the names of event files.

    A TensorBoard callback calls `create_file_writer` of this object in place of the module's. Every
    other attribute of this object is the attribute of the module with the same name.

    Args:
        mark: The string that is added to the names of the files.
    """

    def __init__(self, mark: str) -> None:
        self.mark = mark

    def __getattr__(self, name: str) -> Any:
        return getattr(tf.summary, name)

    def create_file_writer(self, logdir: str) -> Any:
        return tf.summary.create_file_writer(logdir, filename_suffix=event_suffix(self.mark))


def _files_of(callback: keras.callbacks.TensorBoard) -> EventFiles:
    return EventFiles(str(callback.log_dir), summary_module(callback).mark)


def _digest(callback: keras.callbacks.CSVLogger, size: int) -> str | None:
    """Returns a SHA-256 of up to 64 KiB before the offset `size` in the file of a CSVLogger.

    The offset is the size that the file has at a snapshot. When training resumes, a different
    checksum shows that the file has been changed. The result is None if the file's path now leads
    to another file or to none.
    """
    content = _content(callback, max(0, size - _COMPARED), size)
    return None if content is None else hashlib.sha256(content).hexdigest()


def _content(
    callback: keras.callbacks.CSVLogger, begin: int, end: int | None = None
) -> bytes | None:
    """Returns the bytes from `begin` to `end`, or to the last one, of the file of a CSVLogger.

    The result is None if the file's path now leads to another file or to none.
    """
    try:
        with open(callback.filename, "rb") as file:
            if not os.path.samestat(os.fstat(file.fileno()), os.fstat(callback.csv_file.fileno())):
                return None
            file.seek(begin)
            return file.read(-1 if end is None else end - begin)
    except FileNotFoundError:
        return None


def _why_rows_stay(callback: keras.callbacks.CSVLogger, state: State, epoch: int) -> str:
    """Returns why the rows of a CSV file after a snapshot must not be removed; "" if they may be.

    The rows may be removed only if this training has written all of them, since training will write
    its own rows again.

    Args:
        callback: The CSVLogger; its file is open.
        state: The state in the snapshot, which `rows_of` returned.
        epoch: The index of the epoch that is trained next.
    """
    kept = state["bytes"]
    if os.fstat(callback.csv_file.fileno()).st_nlink > 1:
        return "the file has another name as well (a hard link)"
    digest = _digest(callback, kept)
    if digest is None or digest != state["sha256"]:
        return "its rows before the snapshot have been changed"
    tail = _content(callback, kept)
    assert tail is not None
    try:
        ours = _are_rows_from(tail.decode(), callback.sep, state["keys"], epoch, kept == 0)
    except (UnicodeDecodeError, csv.Error):
        ours = False
    return "" if ours else "another run may have written the rows after the snapshot"


def _are_rows_from(
    text: str, sep: str, keys: list[str] | None, epoch: int, has_header: bool
) -> bool:
    """Returns whether a text consists of the CSV rows of successive epochs.

    The last row may be incomplete, since the program may have been killed while it wrote the row.

    Args:
        text: The text.
        sep: The separator of columns.
        keys: The names of the columns after "epoch"; None if they were not known at the snapshot.
        epoch: The index of the epoch of the first row.
        has_header: Whether the text begins with a header.
    """
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=sep))
    if has_header:
        header, *rows = rows
        if header[:1] != ["epoch"]:
            return False
    cut_off = text.rpartition("\n")[2]
    if cut_off:
        if not rows:  # the header itself is incomplete
            return True
        rows.pop()
        number = str(epoch + len(rows))
        if not (number.startswith(cut_off) or cut_off.startswith(number + sep)):
            return False
    columns = {len(row) for row in rows} if keys is None else {1 + len(keys)}
    return len(columns) <= 1 and all(
        row[:1] == [str(number)] and len(row) in columns for number, row in enumerate(rows, epoch)
    )
