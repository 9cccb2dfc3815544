"""On the tasks that are not the chief, callbacks and the model write no files.

Keras' hooks run on every task. If two tasks wrote the same file, they would corrupt it, double its
rows, or fail because of each other's locks. So on all tasks but the chief, callbacks that only
write are left out, and the model saves nothing while hooks may ask it to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras

from kfit.checkpoint.callback_attributes import is_of_library
from kfit.checkpoint.callback_names import FOR_THE_CHIEF
from kfit.checkpoint.writing_elsewhere import WRITERS, writing_elsewhere
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals import patch_points as points
from kfit.internals.callbacks import ORBAX, decide_to_save
from kfit.internals.patching import patched

_TRACKERS = ("aim", "clearml", "comet_ml", "dvclive", "mlflow", "neptune", "swanlab", "wandb")
"""Packages whose callbacks log a run to a server or write files; on each worker they would log it
once more."""
_PRINT = (
    keras.callbacks.EarlyStopping,
    keras.callbacks.LearningRateScheduler,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ReduceLROnPlateau,
)
"""Keras' callbacks that work on every task, and with `verbose` print on each of them."""
_SAVES = ("save", "save_weights", "export")


def without_writers(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that a task which is not the chief runs, in the user's order.

    Callbacks that only write are left out. A class of the user's that derives from one of Keras'
    and has hooks of its own is not: what it inherits writes elsewhere (`saving_nothing`).

    Args:
        callbacks: What the user gave: a callback, a structure of callbacks, or None.
    """
    return [callback for callback in listed(callbacks) if not is_for_the_chief(callback)]


def is_for_the_chief(callback: keras.callbacks.Callback) -> bool:
    """Returns whether only the chief runs a callback, since all that it does is to write."""
    packages = {cls.__module__.partition(".")[0] for cls in type(callback).__mro__}
    return (
        getattr(callback, FOR_THE_CHIEF, False)
        or isinstance(callback, ORBAX)
        or not packages.isdisjoint(_TRACKERS)
        or (isinstance(callback, WRITERS) and not _has_own_hooks(callback))
    )


def _has_own_hooks(callback: keras.callbacks.Callback) -> bool:
    """Returns whether the class of a callback is the user's, and has hooks of its own."""
    classes = [cls for cls in type(callback).__mro__ if not is_of_library(cls)]
    names = (name for cls in classes for name in vars(cls))
    return any(name == "set_model" or name.startswith("on_") for name in names)


@contextmanager
def saving_nothing(model: keras.Model, callbacks: Any = None) -> Iterator[None]:
    """Context in which a model's `save`, `save_weights` and `export` do nothing.

    Used on tasks that are not the chief, while hooks of callbacks may save the model. Keras'
    ModelCheckpoint does not even create a directory: if two tasks create the same directory at the
    same time, one of them fails. But the callback updates its best value and its counters as if it
    had saved. Keras' other callbacks work, but print nothing. A callback of the user's that saves
    may read the file afterwards, so a warning says that nothing was written.

    What a user's class inherits from a callback of Keras that writes writes elsewhere. A
    `CallbackList` has no callbacks meanwhile that only write.

    Such contexts may be nested, since a hook of `fit` may call `evaluate`.

    Args:
        model: The model.
        callbacks: The callbacks that run within the context: one, a structure of them, or None.
    """
    before = {name: vars(model)[name] for name in _SAVES if name in vars(model)}
    for name in _SAVES:
        # Not by `setattr`, since Keras tracks the attributes of a model.
        object.__setattr__(model, name, partial(_save_nothing, name))
    try:
        with ExitStack() as stack:
            if isinstance(callbacks, keras.callbacks.CallbackList):
                stack.enter_context(_without_writers_in(callbacks))
            for callback in listed(callbacks):
                stack.enter_context(writing_elsewhere(callback))
                if isinstance(callback, _PRINT):
                    stack.enter_context(_silent(callback))
                if isinstance(callback, keras.callbacks.ModelCheckpoint):
                    only_decides = partial(_only_decides, callback)
                    stack.enter_context(patched(points.SAVE_CHECKPOINT, only_decides, of=callback))
            yield
    finally:
        for name in _SAVES:
            if name in before:
                object.__setattr__(model, name, before[name])
            else:
                object.__delattr__(model, name)


@contextmanager
def _without_writers_in(callbacks: keras.callbacks.CallbackList) -> Iterator[None]:
    """Context in which a `CallbackList` has no callbacks that only the chief runs."""
    before, kept = callbacks.callbacks, without_writers(callbacks)
    callbacks.callbacks = list(kept)
    try:
        yield
    finally:
        added = [each for each in callbacks.callbacks if all(each is not known for known in kept)]
        callbacks.callbacks = [*before, *added]


def _save_nothing(name: str, *_: Any, **__: Any) -> None:
    """Takes the place of a model's `save`, `save_weights` or `export`, by its name."""
    warn_user(
        f"`model.{name}` in a hook writes the file on the chief only, and nothing on this task. If "
        "the callback then reads the file, or says that it was saved, let it run on the chief "
        "only: `kfit.callbacks.chief_only(callback)`. If it also evaluates, predicts or stops "
        "training, it must run on all tasks: save under `if kfit.saving.is_chief():` there."
    )


@contextmanager
def _silent(callback: Any) -> Iterator[None]:
    """Context in which one of Keras' callbacks has `verbose=0`."""
    before, callback.verbose = callback.verbose, 0
    try:
        yield
    finally:
        callback.verbose = before


def listed(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Returns a list of the callbacks that a user gave.

    Args:
        callbacks: A `keras.callbacks.CallbackList`, a callback, a structure of callbacks, or None.
    """
    if isinstance(callbacks, keras.callbacks.CallbackList):
        return list(callbacks.callbacks)
    return list(keras.tree.flatten(callbacks)) if callbacks else []


def _only_decides(
    callback: keras.callbacks.ModelCheckpoint, _: Callable[..., None]
) -> Callable[..., None]:
    """Returns a function to call in place of a ModelCheckpoint's method that saves the model.

    The function saves nothing, but updates what the callback remembers, such as its best value.

    Args:
        callback: The callback.
        _: The method that is replaced.
    """
    return partial(decide_to_save, callback)
