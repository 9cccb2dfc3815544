"""What callbacks remember, so that training goes on as if it had never stopped.

A callback with `state_dict` and `load_state_dict` speaks for itself. For Keras' own, which have
neither, this file knows what they remember; `written_files` knows what they have written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras

from kfit.checkpoint.written_files import (
    State,
    events_of,
    mark_events,
    rewind_events,
    rewind_rows,
    rows_of,
    take_up_events,
)

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
        self._event_files: dict[int, list[str]] = {}
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.TensorBoard):
                mark_events(callback)

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

    def prepare(
        self, callbacks: Sequence[keras.callbacks.Callback], states: Sequence[State]
    ) -> None:
        """Before `on_train_begin` of a training that goes on: files are gone on with, too.

        Args:
            callbacks: The callbacks, in their order.
            states: What `state_dict` returned, of the chief.
        """
        known = {entry["callback"]: entry["state"] for entry in states}
        for name, callback in _named(callbacks):
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback.append = True
            elif isinstance(callback, keras.callbacks.TensorBoard) and name in known:
                files = take_up_events(callback, known[name]["mark"])
                self._event_files[id(callback)] = files

    def load_state_dict(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        states: Sequence[State],
        *,
        epoch: int,
        warn: bool = True,
    ) -> None:
        """Gives the callbacks their states, after `on_train_begin`.

        Args:
            callbacks: The callbacks, in their order.
            states: What `state_dict` returned, of the chief.
            epoch: The epoch that is trained next.
            warn: Whether to warn of a callback that has no state there and begins anew, and of a
                state that no callback takes. Tasks other than the chief lack callbacks that write.
        """
        left = {entry["callback"]: entry["state"] for entry in states}
        for name, callback in _named(callbacks):
            if name in left:
                self._load(callback, left.pop(name), epoch)
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

    def _load(self, callback: keras.callbacks.Callback, state: State, epoch: int) -> None:
        if hasattr(callback, "load_state_dict"):
            callback.load_state_dict(state)
        elif isinstance(callback, keras.callbacks.CSVLogger):
            rewind_rows(callback, state, epoch)
        elif isinstance(callback, keras.callbacks.TensorBoard):
            callback._global_train_batch = state["train_batch"]
            callback._global_test_batch = state["test_batch"]
            rewind_events(callback, self._event_files.get(id(callback), []), state)
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


_READERS: tuple[tuple[type, Callable[[Any], State]], ...] = (
    (keras.callbacks.CSVLogger, rows_of),
    (keras.callbacks.TensorBoard, events_of),
)


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
