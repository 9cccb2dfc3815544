"""`chief_only`: marks a callback that, with several workers, only the chief shall run."""

from __future__ import annotations

from typing import TypeVar

import keras

from kfit.argument_checks import shown
from kfit.checkpoint.callback_names import FOR_THE_CHIEF
from kfit.heartbeat.tracebacks import for_user
from kfit.training.callback import TrainingCallback

_Callback = TypeVar("_Callback", bound=keras.callbacks.Callback)


@for_user
def chief_only(callback: _Callback) -> _Callback:
    """Marks a callback that, with several workers, only the chief runs.

    By default every worker runs every callback. This function is meant for your own callbacks that
    write files, print or log to a server, which should happen only once. These callbacks need no
    mark: Keras' callbacks that only write, and those of Weights & Biases, MLflow, Comet, Neptune,
    ClearML, Aim, SwanLab and DVCLive.

    Do not mark a callback that stops training, changes the model or its learning rate, evaluates or
    predicts, since all workers must do this together.

    Args:
        callback: A Keras callback.

    Returns:
        The callback that was passed.

    Raises:
        ValueError: If `callback` is not a Keras callback, or if it is a
            `kfit.callbacks.TrainingCallback`: these callbacks must run on all workers, and write
            only on the chief by themselves.

    Example:
        >>> model.fit(x, y, callbacks=[kfit.callbacks.chief_only(MyLogger("runs.db"))])
    """
    if not isinstance(callback, keras.callbacks.Callback):
        is_class = isinstance(callback, type) and issubclass(callback, keras.callbacks.Callback)
        hint = f"; pass an instance: {callback.__name__}()" if is_class else ""
        raise ValueError(
            f"`callback` must be a keras.callbacks.Callback{hint}. Received: "
            f"{shown(callback)} (of type {type(callback)})"
        )
    if isinstance(callback, TrainingCallback):
        raise ValueError(
            "`callback` must not be a kfit.callbacks.TrainingCallback, which works together on all "
            f"tasks, and writes on the chief only. Received: {shown(callback)}"
        )
    object.__setattr__(callback, FOR_THE_CHIEF, True)
    return callback
