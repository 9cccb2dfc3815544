"""The loops of `fit`, `evaluate` and `predict`: plain functions, and the only place hooks fire.

A loop knows nothing of strategies, devices or tensors. It takes steps through an execution and
asks the `Team` what the other tasks say, so that all tasks take the same steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from kfit.distribute.agreement import Agreement
from kfit.executions import Execution, Pace
from kfit.inputs import Batches, Run
from kfit.logs import as_numbers
from kfit.predictions import Prediction
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
    pace = Pace(loop.steps_per_execution or _every_batch(callbacks, "train"))
    model.stop_training = False
    callbacks.on_train_begin()
    epoch_logs: Logs | None = None
    while progress.epoch < epochs and not model.stop_training:
        epoch = progress.epoch
        model.reset_metrics()
        callbacks.on_epoch_begin(epoch)
        batches.on_epoch_begin()

        def begin(step: int) -> None:
            callbacks.on_train_batch_begin(step)

        def end(step: int, steps: int, logs: Logs) -> bool:
            progress.advance(steps)
            callbacks.on_train_batch_end(step, logs)
            model.stop_training = loop.agreement.any(model.stop_training)
            return not model.stop_training

        logs = _take_steps(
            execution, batches, epoch, progress.step_in_epoch, pace, begin, end, loop
        )
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
    pace = Pace(loop.steps_per_execution or _every_batch(callbacks, "test"))
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    batches.on_epoch_begin()

    def begin(step: int) -> None:
        callbacks.on_test_batch_begin(step)

    def end(step: int, steps: int, logs: Logs) -> bool:
        callbacks.on_test_batch_end(step, logs)
        model.stop_evaluating = loop.agreement.any(model.stop_evaluating)
        return not model.stop_evaluating

    logs = _take_steps(execution, batches, 0, 0, pace, begin, end, loop)
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
    for run in batches.runs(0):
        taken = 0
        while not model.stop_predicting and (run.steps is None or taken < run.steps):
            callbacks.on_predict_batch_begin(len(outputs))
            batch = prediction.run(run)
            if batch is None:
                _note_end(batches, run, taken)
                break
            outputs.append(batch)
            taken += 1
            callbacks.on_predict_batch_end(len(outputs) - 1, {"outputs": batch})
            model.stop_predicting = loop.agreement.any(model.stop_predicting)
    batches.on_epoch_end()
    callbacks.on_predict_end()
    return outputs


def _take_steps(
    execution: Execution,
    batches: Batches,
    epoch: int,
    step: int,
    pace: Pace,
    begin: Callable[[int], None],
    end: Callable[[int, int, Logs], bool],
    loop: Loop,
) -> Logs:
    """Takes the steps of one epoch from `step` on, and returns its logs.

    Args:
        execution: Takes the steps.
        batches: Where the runs come from.
        epoch: Which epoch.
        step: First step in it.
        pace: How many steps an execution takes.
        begin: Called with the index of an execution's first step before it.
        end: Called with the index of its last step, the number of steps and the logs after it;
            returns whether to go on.
        loop: The loop.
    """
    logs: Logs = {}
    first = step
    for run in batches.runs(epoch, step):
        taken = 0
        while run.steps is None or taken < run.steps:
            wanted = _agreed_steps(pace, loop)
            if run.steps is not None:
                wanted = min(wanted, run.steps - taken)
            begin(step)
            pace.begin()
            done, tensors = execution.run(run, wanted)
            if done == 0:
                _note_end(batches, run, step)
                break
            logs = as_numbers(tensors)
            pace.end(done)
            taken += done
            step += done
            if not end(step - 1, done, logs):
                return logs
            if done < wanted:
                _note_end(batches, run, step)
                break
    if step == first:
        return logs
    # Hooks may have updated metrics since; a step's own values are not among the metrics.
    metrics = as_numbers(loop.read_metrics())
    return {**logs, **metrics} if set(metrics) <= set(logs) else logs


def _agreed_steps(pace: Pace, loop: Loop) -> int:
    """Steps of the next execution: the chief's wish, for all tasks must take as many."""
    if loop.steps_per_execution:
        return pace.steps
    return int(loop.agreement.views([pace.steps])[0, 0])


def _note_end(batches: Batches, run: Run, step: int) -> None:
    """The data ended: after as many steps as an epoch has, or too early."""
    if run.steps is not None:
        warnings.warn(
            "Your input ran out of data; interrupting training. Make sure that your dataset or "
            "generator can generate at least `steps_per_epoch * epochs` batches. You may need to "
            "use the `.repeat()` function when building your dataset.",
            stacklevel=2,
        )
    elif batches.steps is None:
        batches.learned_steps(step)
    batches.restart()


def _every_batch(callbacks: keras.callbacks.CallbackList, mode: str) -> int | None:
    """1 where a callback watches every batch, else None."""
    watched = any(watches_batches(callback, mode) for callback in callbacks.callbacks)
    return 1 if watched else None


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
