"""The loops of `fit`, `evaluate` and `predict`: plain functions, and the only place hooks fire.

A loop knows nothing of strategies, devices or tensors. It takes steps through an execution and
asks the `Team` what the other tasks say, so that all tasks take the same steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras

from kfit.distribute.agreement import Agreement
from kfit.executions import Execution, Pace
from kfit.inputs import Batches, Cursor
from kfit.logs import as_numbers
from kfit.predictions import Prediction, concatenate
from kfit.progress import Progress

Logs = dict[str, Any]


@dataclass
class Loop:
    """What the loops of one call share.

    Attributes:
        model: The model that the callbacks see.
        callbacks: The callbacks, in the user's order.
        agreement: How this task asks the others.
        steps_per_execution: Steps of every execution, or None to find them.
        read_metrics: Reads the metrics of all replicas.
    """

    model: keras.Model
    callbacks: keras.callbacks.CallbackList
    agreement: Agreement
    steps_per_execution: int | None
    read_metrics: Callable[[], Logs]

    def pace(self, hooks: _BatchHooks) -> Pace:
        """The pace of a mode: one step at a time where a callback watches its batches."""
        watched = any(watches_batches(c, hooks.mode) for c in self.callbacks.callbacks)
        return Pace(self.steps_per_execution or (1 if watched else None))


def fit(
    loop: Loop,
    execution: Execution,
    batches: Batches,
    progress: Progress,
    epochs: int,
    validate: Callable[[int], Logs | None],
    finalize: Callable[[], None],
) -> None:
    """Trains until `epochs` epochs are done or somebody stops it.

    on_train_begin
    for each epoch:
        on_epoch_begin
        for each execution of k steps:
            on_train_batch_begin
            take k steps
            on_train_batch_end
            all tasks agree whether to stop
        on_test_* where the epoch is validated
        on_epoch_end
        all tasks agree whether to stop
    finalize the variables
    on_train_end
    """
    callbacks, model = loop.callbacks, loop.model

    def end(step: int, steps: int, logs: Logs) -> None:
        progress.advance(steps)
        callbacks.on_train_batch_end(step, logs)

    hooks = _BatchHooks("train", "stop_training", callbacks.on_train_batch_begin, end)
    pace = loop.pace(hooks)
    model.stop_training = False
    callbacks.on_train_begin()
    # Keras lets callbacks say here where to begin.
    progress.epoch = model._initial_epoch or progress.epoch
    epoch_logs: Logs | None = None
    while progress.epoch < epochs and not model.stop_training:
        epoch = progress.epoch
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        batches.on_epoch_begin()
        cursor = Cursor(batches, epoch, progress.step_in_epoch)
        logs = _take_steps(loop, execution, cursor, pace, hooks)
        batches.on_epoch_end()
        epoch_logs = {**logs, **(validate(epoch) or {})}
        callbacks.on_epoch_end(epoch, epoch_logs)
        model.stop_training = loop.agreement.any(model.stop_training)
        progress.end_epoch()
    if epochs > 0:
        finalize()
    callbacks.on_train_end(epoch_logs)


def evaluate(loop: Loop, execution: Execution, batches: Batches) -> Logs:
    """Evaluates all batches.

    on_test_begin
    for each execution of k steps:
        on_test_batch_begin
        take k steps
        on_test_batch_end
    on_test_end
    """
    callbacks, model = loop.callbacks, loop.model

    def end(step: int, steps: int, logs: Logs) -> None:
        callbacks.on_test_batch_end(step, logs)

    hooks = _BatchHooks("test", "stop_evaluating", callbacks.on_test_batch_begin, end)
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    batches.on_epoch_begin()
    logs = _take_steps(loop, execution, Cursor(batches, 0), loop.pace(hooks), hooks)
    batches.on_epoch_end()
    callbacks.on_test_end(logs)
    return logs


def predict(loop: Loop, prediction: Prediction, batches: Batches) -> list[Any]:
    """Predicts all batches and returns the outputs of each.

    on_predict_begin
    for each batch:
        on_predict_batch_begin
        predict it
        on_predict_batch_end
    on_predict_end
    """
    callbacks, model = loop.callbacks, loop.model
    model.stop_predicting = False
    callbacks.on_predict_begin()
    batches.on_epoch_begin()
    outputs: list[Any] = []
    cursor = Cursor(batches, 0)
    while cursor.more and not model.stop_predicting:
        first, wanted = cursor.step, loop.steps_per_execution or 1
        callbacks.on_predict_batch_begin(first)
        done, results = cursor.take(prediction.run, wanted)
        if done:
            taken = [batch for result in results for batch in result]
            outputs += taken
            callbacks.on_predict_batch_end(first + wanted - 1, {"outputs": concatenate(taken)})
            model.stop_predicting = loop.agreement.any(model.stop_predicting)
    batches.on_epoch_end()
    callbacks.on_predict_end()
    return outputs


class _BatchHooks(NamedTuple):
    """What fires around the executions of a mode: train or test.

    `end` gets the index of an execution's last step, its number of steps and the logs.
    """

    mode: str
    stop_flag: str
    begin: Callable[[int], None]
    end: Callable[[int, int, Logs], None]


def _take_steps(
    loop: Loop, execution: Execution, cursor: Cursor, pace: Pace, hooks: _BatchHooks
) -> Logs:
    """Takes the steps that `cursor` has left of its epoch, and returns the epoch's logs.

    Before each execution all tasks agree whether to go on, and on its number of steps. As in Keras
    an epoch that has begun has one.
    """
    logs: Logs = {}
    start = cursor.step
    goes_on = True
    _, wanted = _agreed(loop, hooks, pace)
    while goes_on and cursor.more:
        first = cursor.step
        hooks.begin(first)
        pace.begin()
        done, results = cursor.take(execution.run, wanted)
        pace.end(done)
        if done:
            logs = as_numbers(results[-1])
            # A fixed number of steps is what Keras tells the hooks, whatever the last one took.
            hooks.end(first + (loop.steps_per_execution or done) - 1, done, logs)
        goes_on, wanted = _agreed(loop, hooks, pace)
    if goes_on and cursor.ended_early:
        warnings.warn(
            "Your input ran out of data; interrupting training. Make sure that your dataset or "
            "generator can generate at least `steps_per_epoch * epochs` batches. You may need to "
            "use the `.repeat()` function when building your dataset.",
            stacklevel=2,
        )
    if cursor.step == start:
        return logs
    # Hooks may have updated metrics since; a step's own values are not among the metrics.
    metrics = as_numbers(loop.read_metrics())
    return {**logs, **metrics} if set(metrics) <= set(logs) else logs


def _agreed(loop: Loop, hooks: _BatchHooks, pace: Pace) -> tuple[bool, int]:
    """Whether all tasks go on, and the steps of the next execution: the fewest that any wants."""
    stop = bool(getattr(loop.model, hooks.stop_flag))
    views = loop.agreement.views([stop, pace.steps])
    setattr(loop.model, hooks.stop_flag, bool(views[:, 0].any()))
    return not views[:, 0].any(), int(views[:, 1].min())


def watches_batches(callback: keras.callbacks.Callback, mode: str) -> bool:
    """Whether a callback does something at every batch of `mode`: train, test or predict.

    The progress bar does not: it shows what there is when it is called.
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
    """Whether one of Keras' callbacks has batch hooks but was not asked to use them."""
    kinds: Sequence[tuple[type, str]] = (
        (keras.callbacks.ModelCheckpoint, "save_freq"),
        (keras.callbacks.BackupAndRestore, "save_freq"),
        (keras.callbacks.TensorBoard, "update_freq"),
    )
    for kind, frequency in kinds:
        if type(callback) is kind:
            profiles = getattr(callback, "_start_batch", 0) > 0
            writes_speed = getattr(callback, "write_steps_per_second", False)
            return getattr(callback, frequency, None) == "epoch" and not (profiles or writes_speed)
    return False
