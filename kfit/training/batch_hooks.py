"""Batch hooks, such as `on_train_batch_end`: how they are called, and which callbacks need them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from kfit.internals.callbacks import profiles_batches
from kfit.training.progress_bar import ProgressBar


def _nothing(steps: int, logs: dict[str, Any]) -> None:
    """Does nothing; the default of `BatchHooks.took`."""


class BatchHooks(NamedTuple):
    """The batch hooks of one mode, called before and after each graph call of one or more steps.

    Attributes:
        mode: The mode: "train", "test" or "predict".
        stop_flag: The name of the attribute of the model by which a callback ends the loop, such as
            "stop_training".
        hook: A function that calls a hook of all callbacks. It gets the name and the arguments of
            the hook.
        took: A function that is called when steps have been taken, with their number and the logs.
            By default it does nothing.
    """

    mode: str
    stop_flag: str
    hook: Callable[..., None]
    took: Callable[[int, dict[str, Any]], None] = _nothing

    def begin(self, step: int) -> None:
        """Calls the hook `on_{mode}_batch_begin` of all callbacks.

        Args:
            step: The index in the epoch of the first step of the graph call that follows.
        """
        self.hook(f"on_{self.mode}_batch_begin", step)

    def end(self, step: int, logs: dict[str, Any]) -> None:
        """Calls the hook `on_{mode}_batch_end` of all callbacks.

        Args:
            step: The index in the epoch of the last step of the graph call.
            logs: The logs after this step.
        """
        self.hook(f"on_{self.mode}_batch_end", step, logs)


def watches_batches(callback: keras.callbacks.Callback, mode: str) -> bool:
    """Returns whether a callback must be called at every batch of a mode.

    If at least one callback must, each graph call takes only one step, unless the user has set
    `steps_per_execution`. The result is False if the callback has no batch hooks for this mode, or
    if these do nothing with its settings. It is also False for the hooks of Keras' progress bar and
    of kfit's, which may be called less often, but not for others that a subclass defines.

    Args:
        callback: The callback.
        mode: "train", "test" or "predict".
    """
    hooks = [f"on_{mode}_batch_begin", f"on_{mode}_batch_end"]
    hooks += ["on_batch_begin", "on_batch_end"] if mode == "train" else []
    if not any(_overridden(callback, hook) for hook in hooks):
        return False
    return not _sleeps_through_batches(callback)


def _overridden(callback: keras.callbacks.Callback, hook: str) -> bool:
    own = getattr(callback, hook)
    quiet = (ProgressBar, keras.callbacks.ProgbarLogger)
    base = next((kind for kind in quiet if isinstance(callback, kind)), keras.callbacks.Callback)
    return getattr(own, "__func__", own) is not getattr(base, hook)


def _sleeps_through_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether the batch hooks of a Keras callback do nothing with its present settings.

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
