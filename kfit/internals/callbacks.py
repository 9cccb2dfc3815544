"""Functions that read and change private state of Keras' callbacks and metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from kfit.internals.private import uses

ORBAX: tuple[type, ...] = tuple(
    kind for name, kind in vars(keras.callbacks).items() if name == "OrbaxCheckpoint"
)
"""The class OrbaxCheckpoint, which older versions of Keras lack."""

_EVENTS = "TensorBoard tells nothing of its event files"


@uses(
    "keras.callbacks.TensorBoard._summary_module", because="names of event files are chosen by it"
)
def summary_module(callback: keras.callbacks.TensorBoard) -> Any:
    """Returns the module by which a TensorBoard callback creates the writers of its event files.

    Returns:
        The module that `set_summary_module` has set. If kfit has set none, Keras' default, which is
        `tf.summary`, or None as long as Keras has not used it.
    """
    return callback._summary_module


@uses(
    "keras.callbacks.TensorBoard._summary_module", because="names of event files are chosen by it"
)
def set_summary_module(callback: keras.callbacks.TensorBoard, module: Any) -> None:
    """Sets the module by which a TensorBoard callback creates the writers of its event files.

    kfit replaces Keras' module to add a mark to the names of the files, so that a resumed run
    recognizes its files.
    """
    callback._summary_module = module


@uses("keras.callbacks.TensorBoard._writers", because=_EVENTS)
def event_writers(callback: keras.callbacks.TensorBoard) -> dict[str, Any]:
    """Returns the open writers of a TensorBoard callback's event files, by name ("train", "val").

    The dict is the callback's own, so a change of it takes effect.
    """
    writers: dict[str, Any] = callback._writers
    return writers


@uses(
    "keras.callbacks.TensorBoard._global_train_batch",
    "keras.callbacks.TensorBoard._global_test_batch",
    because=_EVENTS,
)
def counted_batches(callback: keras.callbacks.TensorBoard) -> tuple[int, int]:
    """Returns how many batches a TensorBoard callback has counted in training and in evaluation."""
    return callback._global_train_batch, callback._global_test_batch


@uses(
    "keras.callbacks.TensorBoard._global_train_batch",
    "keras.callbacks.TensorBoard._global_test_batch",
    because=_EVENTS,
)
def set_counted_batches(callback: keras.callbacks.TensorBoard, train: int, test: int) -> None:
    """Sets how many batches a TensorBoard callback has counted, when a run is resumed."""
    callback._global_train_batch = train
    callback._global_test_batch = test


@uses(
    "keras.callbacks.TensorBoard._pop_writer",
    "keras.callbacks.TensorBoard._push_writer",
    "keras.callbacks.TensorBoard._train_writer",
    "keras.callbacks.TensorBoard._global_train_batch",
    because=_EVENTS,
)
def record_by_count(callback: keras.callbacks.TensorBoard) -> None:
    """Makes a TensorBoard callback decide by its count of batches whether it writes the next one.

    Keras does so when a batch begins. If a run is resumed within an execution of several steps, the
    callback is told of its end without its beginning.
    """
    callback._pop_writer()
    callback._push_writer(callback._train_writer, callback._global_train_batch)


@uses(
    "keras.callbacks.TensorBoard._pop_writer",
    "keras.callbacks.TensorBoard._prev_summary_state",
    because=_EVENTS,
)
def leave_writers(callback: keras.callbacks.TensorBoard) -> None:
    """Lets a TensorBoard callback give up the writer that it has made the default one.

    Keras does so in `on_train_end`, which is not called if training fails. What the program itself
    writes by `tf.summary` afterwards would go to the callback's file, or nowhere.
    """
    while callback._prev_summary_state:
        callback._pop_writer()


@uses("keras.callbacks.TensorBoard._start_batch", because="`profile_batch` has many forms")
def profiles_batches(callback: keras.callbacks.Callback) -> bool:
    """Returns whether a callback is a TensorBoard that profiles batches."""
    return bool(getattr(callback, "_start_batch", 0) > 0)


@uses(
    "keras.callbacks.ModelCheckpoint._get_file_path",
    "keras.callbacks.ModelCheckpoint._should_save_model",
    because="no public method of ModelCheckpoint decides without writing",
)
def decide_to_save(
    callback: keras.callbacks.ModelCheckpoint, epoch: int, batch: int | None, logs: Any
) -> None:
    """Makes a ModelCheckpoint update its best value as if the callback had saved the model.

    Only the chief (the first worker) saves the model. All other tasks call this function, so that
    their callbacks have the same best value. `batch` is None at the end of an epoch.
    """
    path = callback._get_file_path(epoch, batch, logs)
    callback._should_save_model(epoch, batch, logs, path)


@uses(
    "keras.callbacks.EarlyStopping._set_monitor_op",
    because="no public method chooses how values are compared",
)
def choose_comparison(callback: keras.callbacks.Callback) -> None:
    """Lets a callback with a `monitor` choose how it compares values, if it has not done so yet.

    Keras' callbacks choose at the end of the first epoch, which a training that resumes has behind
    it. Until then they cannot compare anything with their best value.
    """
    if getattr(callback, "monitor_op", callback) is None:
        callback._set_monitor_op()


@uses("keras.metrics.Accuracy._direction", because="metrics tell it in no other way")
def direction_of(metric: keras.Metric) -> str | None:
    """Returns whether higher or lower values of a metric are better: "up" or "down".

    None if the metric does not define it.
    """
    direction: str | None = getattr(metric, "_direction", None)
    return direction


@uses(
    "keras.utils.Progbar._estimate_step_duration",
    because="Progbar counts the steps before a resume, and validation, as steps of this run",
)
def measure_steps_by(bar: keras.utils.Progbar, seconds: Callable[[int, float], float]) -> None:
    """Makes a progress bar use another measurement of the time of a step, also for its ETA.

    Args:
        bar: The bar.
        seconds: A function that gets the number of steps and the time, and returns the seconds that
            a step takes.
    """
    assert callable(bar._estimate_step_duration)
    bar._estimate_step_duration = seconds
