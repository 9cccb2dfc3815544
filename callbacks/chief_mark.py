"""Callbacks that write, on the chief alone."""

from __future__ import annotations

from typing import TypeVar

import keras

from kfit.training.callback import TrainingCallback
from kfit.training.chief_only import MARK

_Callback = TypeVar("_Callback", bound=keras.callbacks.Callback)


def chief_only(callback: _Callback) -> _Callback:
    """Marks a callback whose hooks only the chief calls; on the other tasks it is left out.

    It is meant for callbacks that write files, print or log to a server. Those of Keras that only
    write, and those of Weights & Biases, MLflow, Comet, Neptune, ClearML, Aim, SwanLab and DVCLive
    need no mark. A callback must run on every task if it stops training, changes the model or its
    learning rate, or evaluates or predicts: on workers all tasks must do these together.

    Args:
        callback: A Keras callback.

    Returns:
        The same callback.

    Raises:
        ValueError: If it is not a Keras callback, or a `kfit.callbacks.TrainingCallback`: these
            work together on all tasks, and write on the chief only.

    Example:
        >>> model.fit(x, y, callbacks=[kfit.callbacks.chief_only(MyLogger("runs.db"))])
    """
    if not isinstance(callback, keras.callbacks.Callback):
        raise ValueError(
            "`callback` must be a keras.callbacks.Callback. Received: "
            f"{callback!r} (of type {type(callback)})"
        )
    if isinstance(callback, TrainingCallback):
        raise ValueError(
            "`callback` must not be a kfit.callbacks.TrainingCallback, which works together on all "
            f"tasks, and writes on the chief only. Received: {callback!r}"
        )
    object.__setattr__(callback, MARK, True)
    return callback
