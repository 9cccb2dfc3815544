"""What a user's class inherits from a callback of Keras that writes, on other tasks than the chief.

The hooks that the user wrote run on every task, and may use what Keras' hooks have set, such as the
open file of a CSVLogger. So Keras' hooks run, too, but on a folder that is removed afterwards.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import keras

from kfit.heartbeat.aside import PREFIX, root_aside
from kfit.internals.patching import Point, patched

_HOOKS_THAT_WRITE = tuple(
    Point(kind, name, "what a class inherits from it would write on each task")
    for kind, without in (
        (keras.callbacks.RemoteMonitor, ()),
        (keras.callbacks.BackupAndRestore, ("on_train_begin",)),
    )
    for name in vars(kind)
    if name.startswith("on_") and name not in without
)
"""The hooks that send logs, and those that save; `BackupAndRestore.on_train_begin` restores."""

WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
"""Keras' callbacks that only write."""

_elsewhere: dict[int, keras.callbacks.Callback] = {}
"""The callbacks that write nothing of the run at present, by their ids."""


def writes_elsewhere(callback: Any) -> bool:
    """Returns whether what a callback inherits from Keras writes nothing of the run at present."""
    return id(callback) in _elsewhere


@contextmanager
def writing_elsewhere(callback: keras.callbacks.Callback) -> Iterator[None]:
    """Context in which what a callback inherits from Keras' writers writes no file of the run.

    A CSVLogger writes a file of the same name in another folder, with the rows to which it appends.
    A TensorBoard writes its events there. A RemoteMonitor sends nothing. A BackupAndRestore
    restores, but saves nothing. Other callbacks are not changed.

    Args:
        callback: The callback.
    """
    derives = isinstance(callback, (*WRITERS, keras.callbacks.BackupAndRestore))
    if not derives or writes_elsewhere(callback):
        yield
        return
    with ExitStack() as stack:
        made = tempfile.TemporaryDirectory(
            prefix=PREFIX, dir=root_aside(), ignore_cleanup_errors=True
        )
        folder = Path(stack.enter_context(made))
        _elsewhere[id(callback)] = callback
        stack.callback(_elsewhere.pop, id(callback))
        for point in _HOOKS_THAT_WRITE:
            if isinstance(callback, point.owner):
                stack.enter_context(patched(point, _unless_elsewhere))
        if isinstance(callback, keras.callbacks.CSVLogger):
            stack.enter_context(_rows_in(folder, callback))
        if isinstance(callback, keras.callbacks.TensorBoard):
            stack.enter_context(_events_in(folder, callback))
        yield


def _unless_elsewhere(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps a hook of Keras, so that it does nothing for callbacks that write elsewhere."""

    def hook(self: Any, *args: Any, **kwargs: Any) -> None:
        if not writes_elsewhere(self):
            original(self, *args, **kwargs)

    return hook


@contextmanager
def _rows_in(folder: Path, logger: keras.callbacks.CSVLogger) -> Iterator[None]:
    own = logger.filename
    logger.filename = str(folder / Path(own).name)
    if logger.append and Path(own).is_file():
        shutil.copyfile(own, logger.filename)
    try:
        yield
    finally:
        logger.filename = own


@contextmanager
def _events_in(folder: Path, board: keras.callbacks.TensorBoard) -> Iterator[None]:
    own, board.log_dir = board.log_dir, str(folder / Path(board.log_dir).name)
    if board.model is not None:  # it has made the folder's name of `log_dir` already
        keras.callbacks.TensorBoard.set_model(board, board.model)
    try:
        yield
    finally:
        board.log_dir = own
