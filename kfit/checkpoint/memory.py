"""What callbacks remember, so that training goes on as if it had never stopped.

A callback with `state_dict` and `load_state_dict` speaks for itself. For Keras' own, which have
neither, this file knows what they remember, and what they have written: rows and events after the
snapshot will be written again, so they are taken out of the files.
"""

from __future__ import annotations

import glob
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

State = dict[str, Any]

_REMEMBERS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (
        keras.callbacks.EarlyStopping,
        ("wait", "stopped_epoch", "best", "best_epoch", "best_weights"),
    ),
    (keras.callbacks.ReduceLROnPlateau, ("wait", "best", "cooldown_counter")),
    (
        keras.callbacks.ModelCheckpoint,
        ("best", "_current_epoch", "_batches_seen_since_last_saving", "_last_batch_seen"),
    ),
    (keras.callbacks.SwapEMAWeights, ("_ema_weights_in_model",)),
    (keras.callbacks.History, ("epoch", "history")),
)
"""Attributes of Keras' callbacks; one that Keras renames is missed by a test."""


class CallbackMemory:
    """Takes and gives back the state of the callbacks of one `fit`.

    Args:
        callbacks: The callbacks, before they get their model: from then on some write files.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._files = {
            id(callback): event_files(callback)
            for callback in callbacks
            if isinstance(callback, keras.callbacks.TensorBoard)
        }

    def state_dict(self, callbacks: Sequence[keras.callbacks.Callback]) -> list[State]:
        """The states of the callbacks that have one, in their order.

        Raises:
            TypeError: If a `state_dict` returned no dict.
        """
        states = []
        for name, callback in _named(callbacks):
            state = _state_of(callback)
            if not isinstance(state, dict | None):
                raise TypeError(f"`{name}.state_dict` must return a dict. It returned: {state!r}")
            if state is not None:
                states.append({"callback": name, "state": state})
        return states

    def prepare(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        """Before `on_train_begin` of a training that goes on: nobody empties a file."""
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True

    def load_state_dict(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        states: Sequence[State],
        *,
        warn: bool = True,
    ) -> None:
        """Gives the callbacks their states, after `on_train_begin`.

        Args:
            callbacks: The callbacks, in their order.
            states: What `state_dict` returned, of the chief.
            warn: Whether to warn of a callback that has no state there and begins anew, and of a
                state that no callback takes. Tasks other than the chief lack callbacks that write.
        """
        left = {entry["callback"]: entry["state"] for entry in states}
        for name, callback in _named(callbacks):
            if name in left:
                self._load(callback, left.pop(name))
            elif warn and _state_of(callback) is not None:
                warnings.warn(
                    f"The snapshot has no state of the callback {name}; it begins anew.",
                    stacklevel=2,
                )
        for name in left if warn else ():
            warnings.warn(
                f"The snapshot has a state of the callback {name}, which is not among the "
                "callbacks any more.",
                stacklevel=2,
            )

    def _load(self, callback: keras.callbacks.Callback, state: State) -> None:
        if hasattr(callback, "load_state_dict"):
            callback.load_state_dict(state)
        elif isinstance(callback, keras.callbacks.CSVLogger):
            _rewind_rows(callback, state)
        elif isinstance(callback, keras.callbacks.TensorBoard):
            callback._global_train_batch = state["train_batch"]
            callback._global_test_batch = state["test_batch"]
            rewind_events(self._files.get(id(callback), []), state["files"])
        else:
            for attribute, value in state.items():
                setattr(callback, attribute, value)
        if isinstance(callback, keras.callbacks.History):
            callback.model.history = callback


def _state_of(callback: keras.callbacks.Callback) -> Any:
    if hasattr(callback, "state_dict"):
        return callback.state_dict()
    for kind, read in _READERS:
        if isinstance(callback, kind):
            return read(callback)
    for kind, attributes in _REMEMBERS:
        if isinstance(callback, kind):
            return {name: getattr(callback, name) for name in attributes if hasattr(callback, name)}
    return None


def _rows_of(callback: keras.callbacks.CSVLogger) -> State:
    file = callback.csv_file
    if file is None or file.closed:
        return {"bytes": None, "keys": callback.keys}
    file.flush()
    return {"bytes": file.tell(), "keys": callback.keys}


def _rewind_rows(callback: keras.callbacks.CSVLogger, state: State) -> None:
    callback.keys = state["keys"]
    kept, file = state["bytes"], callback.csv_file
    if kept is None or file is None or os.path.getsize(callback.filename) < kept:
        return
    file.flush()
    os.truncate(callback.filename, kept)
    file.seek(0, os.SEEK_END)
    callback.append_header = kept == 0


def _events_of(callback: keras.callbacks.TensorBoard) -> State:
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


_READERS: tuple[tuple[type, Callable[[Any], State]], ...] = (
    (keras.callbacks.CSVLogger, _rows_of),
    (keras.callbacks.TensorBoard, _events_of),
)


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


class _Named(NamedTuple):
    name: str
    callback: keras.callbacks.Callback


def _named(callbacks: Sequence[keras.callbacks.Callback]) -> Iterator[_Named]:
    """Callbacks with names that stay the same from run to run: the class and which one of it."""
    seen: dict[str, int] = {}
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] = seen.get(name, 0) + 1
        yield _Named(f"{name} {seen[name]}" if seen[name] > 1 else name, callback)
