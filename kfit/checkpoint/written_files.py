"""What Keras' CSVLogger and TensorBoard have written, taken back to what it was at a snapshot.

Rows and events after the snapshot will be written again, so they are taken out of the files.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from typing import Any

import keras

State = dict[str, Any]


def rows_of(callback: keras.callbacks.CSVLogger) -> State:
    """How far a CSVLogger has written its file."""
    file = callback.csv_file
    if file is None or file.closed:
        return {"bytes": None, "keys": callback.keys}
    file.flush()
    return {"bytes": file.tell(), "keys": callback.keys}


def rewind_rows(callback: keras.callbacks.CSVLogger, state: State) -> None:
    """Takes out of a CSVLogger's file what was written after a snapshot."""
    callback.keys = state["keys"]
    kept, file = state["bytes"], callback.csv_file
    if kept is None or file is None or os.path.getsize(callback.filename) < kept:
        return
    file.flush()
    os.truncate(callback.filename, kept)
    file.seek(0, os.SEEK_END)
    callback.append_header = kept == 0


def events_of(callback: keras.callbacks.TensorBoard) -> State:
    """How far a TensorBoard callback has come, and has written its event files."""
    for writer in callback._writers.values():
        writer.flush()
    return {
        "train_batch": callback._global_train_batch,
        "test_batch": callback._global_test_batch,
        "files": {
            os.path.relpath(path, callback.log_dir): os.path.getsize(path)
            for path in event_files(callback)
        },
    }


def event_files(callback: keras.callbacks.TensorBoard) -> list[str]:
    """The event files that are in the folders where a TensorBoard callback writes."""
    return sorted(
        path
        for folder in ("train", "validation")
        for path in glob.glob(
            os.path.join(glob.escape(callback.log_dir), folder, "events.out.tfevents.*.v2")
        )
    )


def rewind_events(paths: Sequence[str], sizes: dict[str, int]) -> None:
    """Takes out of event files what was written after a snapshot.

    Args:
        paths: The files that were there before this run wrote any, in `<log_dir>/<folder>/`.
        sizes: The size of each at the time of the snapshot, by its path within the log directory.
    """
    for path in paths:
        folder, name = os.path.split(path)
        kept = sizes.get(os.path.join(os.path.basename(folder), name))
        if kept is None:
            os.unlink(path)
        elif os.path.getsize(path) > kept:
            os.truncate(path, kept)
