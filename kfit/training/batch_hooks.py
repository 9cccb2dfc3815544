"""The hooks for batches: what they are in each mode, and whether a callback has any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from kfit.internals.callbacks import profiles_batches


def _nothing(steps: int, logs: dict[str, Any]) -> None:
    """Does nothing; the default of `BatchHooks.took`."""


class BatchHooks(NamedTuple):
    """The hooks for batches of a mode, called before and after its executions (graph calls).

    Attributes:
        mode: The mode: "train", "test" or "predict".
        stop_flag: The name of the attribute of the model by which a callback ends the loop.
        hook: Calls a hook of all callbacks, by its name.
        took: Called after steps were taken, with their number and the logs.
    """

    mode: str
    stop_flag: str
    hook: Callable[..., None]
    took: Callable[[int, dict[str, Any]], None] = _nothing

    def begin(self, step: int) -> None:
        """Calls the hooks before an execution; `step` is the index of its first step."""
        self.hook(f"on_{self.mode}_batch_begin", step)

    def end(self, step: int, logs: dict[str, Any]) -> None:
        """Calls the hooks after an execution; `step` is the index of its last step."""
        self.hook(f"on_{self.mode}_batch_end", step, logs)


def watches_batches(callback: keras.callbacks.Callback, mode: str) -> bool:
    """Returns whether a callback does something at every batch of a mode.

    The progress bar does not: it needs no call for every batch.

    Args:
        callback: The callback.
        mode: "train", "test" or "predict".
    """
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    hooks = [f"on_{mode}_batch_begin", f"on_{mode}_batch_end"]
    hooks += ["on_batch_begin", "on_batch_end"] if mode == "train" else []
    if not any(_overridden(callback, hook) for hook in hooks):
        return False
    return not _sleeps_through_batches(callback)


def _overridden(callback: keras.callbacks.Callback, hook: str) -> bool:
    own = getattr(callback, hook)
    return getattr(own, "__func__", own) is not getattr(keras.callbacks.Callback, hook)


def _sleeps_through_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback of Keras has hooks for batches that do nothing with its settings.

    An example is a ModelCheckpoint that saves only at the end of an epoch.
    """
    kinds: Sequence[tuple[type, str]] = (
        (keras.callbacks.ModelCheckpoint, "save_freq"),
        (keras.callbacks.BackupAndRestore, "save_freq"),
        (keras.callbacks.TensorBoard, "update_freq"),
    )
    for kind, frequency in kinds:
        if type(callback) is kind:
            profiles = profiles_batches(callback)
            writes_speed = getattr(callback, "write_steps_per_second", False)
            return getattr(callback, frequency, None) == "epoch" and not (profiles or writes_speed)
    return False
