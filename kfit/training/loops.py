"""The loops of `fit`, `evaluate` and `predict`: plain functions, and the only place hooks fire.

A loop knows nothing of strategies, devices or tensors. It takes steps through an execution and
asks what the other tasks say, so that all tasks take the same steps, and save and stop after the
same one.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np

from kfit.distribute.host_collectives import HostCollectives
from kfit.heartbeat import Heartbeat, Phase
from kfit.inputs import Batches, Cursor, Segment
from kfit.internals.callbacks import profiles_batches
from kfit.internals.models import asked_initial_epoch
from kfit.steps.execution import ExecutionResult, Pace, StepExecutor
from kfit.steps.metrics import as_numbers
from kfit.steps.prediction import Predictor, concatenate
from kfit.training.beginning import agree_on_beginning
from kfit.training.fit_state import Training
from kfit.training.progress import Progress
from kfit.training.save_points import FOREVER, SavePoints
from kfit.training.signals import StopSignals, stop

Logs = dict[str, Any]


@dataclass
class Loop:
    """What the loops of one call share.

    Attributes:
        model: The model that the callbacks see.
        callbacks: The callbacks, in the user's order.
        host_collectives: How this task asks the others.
        steps_per_execution: Steps of every execution, or None to find them.
        seconds_per_execution: How long one should last where they are to be found.
        read_metrics: Reads the metrics of all replicas.
        heartbeat: What tells the supervisor of this task that it gets on.
        progress: How far the training under way has come.
        points: The save points of the `fit` under way, None outside of one.
        signals: The signals that came during it.
    """

    model: keras.Model
    callbacks: keras.callbacks.CallbackList
    host_collectives: HostCollectives
    steps_per_execution: int | None
    seconds_per_execution: float
    read_metrics: Callable[[], Logs]
    heartbeat: Heartbeat
    progress: Progress = field(default_factory=Progress)
    points: SavePoints | None = None
    signals: StopSignals | None = None

    def hook(self, name: str, *arguments: Any) -> None:
        """Calls a hook of all callbacks; the supervisor is told that it runs.

        One that fails in a `fit` stops all tasks where they agree next, and none is called before.
        """
        points = self.points
        if points is not None and points.has_failed:
            return
        noting = nullcontext() if points is None else points.noting_failure()
        began = time.monotonic()
        with self.heartbeat.hook(name), noting:
            getattr(self.callbacks, name)(*arguments)
        if points is not None:
            points.note_usual(time.monotonic() - began)

    def pace(self, hooks: _BatchHooks) -> Pace:
        """The pace of a mode: one step at a time where a callback watches its batches."""
        watched = any(watches_batches(c, hooks.mode) for c in self.callbacks.callbacks)
        steps = self.steps_per_execution or (1 if watched else None)
        return Pace(steps, self.seconds_per_execution)


def fit(
    loop: Loop,
    execution: StepExecutor,
    training: Training,
    epochs: int,
    validate: Callable[[int], Logs | None],
    finalize: Callable[[], None],
) -> None:
    """Trains until `epochs` epochs are done or somebody stops it.

    look for a snapshot to go on from
    on_train_begin
    for each epoch:
        on_epoch_begin
        for each execution of k steps:
            on_train_batch_begin
            take k steps
            on_train_batch_end
            all tasks agree: stop? save?
            save point
        on_test_* where the epoch is validated
        on_epoch_end
        all tasks agree whether to stop
        save point
    finalize the variables
    on_train_end

    A snapshot is loaded when the hooks have been called that came before it was taken: after
    `on_train_begin`, or, in the middle of an epoch, after its `on_epoch_begin`. Where a signal
    stops training no further hook is called; where a callback interrupts it, `on_train_end` is.
    """
    execution.settle()  # what an earlier call left that failed
    loop.progress = training.progress
    points = loop.points = SavePoints(training, loop.heartbeat)
    succeeded = False
    with StopSignals() as loop.signals:
        try:
            with loop.heartbeat.phase(Phase.SAVING):
                points.begin()
            _fit(loop, execution, training, epochs, validate, finalize)
            with loop.heartbeat.phase(Phase.SAVING):
                points.end()
            succeeded = not training.interrupted
        except BaseException as error:
            # Now: what follows may take its time, or fail as well.
            cause = points.cause_of(error)
            loop.heartbeat.note_error(cause)
            if cause is not error:
                raise cause from (cause.__cause__ or error)
            raise
        finally:
            with loop.heartbeat.phase(Phase.SAVING):
                points.leave(succeeded)


def _fit(
    loop: Loop,
    execution: StepExecutor,
    training: Training,
    epochs: int,
    validate: Callable[[int], Logs | None],
    finalize: Callable[[], None],
) -> None:
    model, progress, heartbeat = loop.model, training.progress, loop.heartbeat
    batches, points = training.batches, loop.points
    assert points is not None

    def end(step: int, steps: int, logs: Logs) -> None:
        progress.advance(steps)
        training.logs = logs
        loop.hook("on_train_batch_end", step, logs)

    hooks = _BatchHooks("train", "stop_training", partial(loop.hook, "on_train_batch_begin"), end)
    pace = loop.pace(hooks)
    model.stop_training = False
    with heartbeat.phase(_phase_of_reading(batches)):
        batches.rewind()
    loop.hook("on_train_begin")
    points.remember()
    if training.resuming is None:
        # Keras lets callbacks say here where to begin.
        progress.epoch = asked_initial_epoch(model) or progress.epoch
        agree_on_beginning(training)
    while True:
        is_over = progress.epoch >= epochs
        if training.resuming is not None and (is_over or progress.step_in_epoch == 0):
            with heartbeat.phase(Phase.SKIPPING):
                training.apply_restore()
        points.visit_begin()
        if is_over or (model.stop_training and training.resuming is None):
            if is_over:
                with heartbeat.phase(Phase.SKIPPING):
                    training.settle()
            if training.lacks_variables:
                # No step will make them, but what comes after this training needs them.
                _take(loop, execution, hooks, False, batches.empty_segment(), 0)
            break
        epoch = progress.epoch
        model.reset_metrics()
        loop.hook("on_epoch_begin", epoch)
        with heartbeat.phase(_phase_of_reading(batches)):
            batches.on_epoch_begin()
        if training.resuming is not None:
            with heartbeat.phase(Phase.SKIPPING):
                training.apply_restore()
            points.visit_begin()
        # Where training resumes, batches that cannot be passed over by their index are read again.
        is_begun = progress.step_in_epoch > 0
        with heartbeat.phase(Phase.SKIPPING if is_begun else _phase_of_reading(batches)):
            cursor = Cursor(batches, epoch, progress.step_in_epoch)
        logs = _take_steps(loop, execution, cursor, pace, hooks, training.logs)
        if training.interrupted:
            points.visit("stop")
            break
        if training.resuming is not None:
            continue
        with training.frozen(logs) if points else nullcontext():
            if not model.stop_training:  # as in Keras, whose epoch has no end then
                with heartbeat.phase(_phase_of_reading(batches)):
                    batches.on_epoch_end()
            logs = {**logs, **(validate(epoch) or {})}
        loop.hook("on_epoch_end", epoch, logs)
        training.logs = logs
        decision = _decide(loop, hooks, pace)
        progress.end_epoch()
        points.visit("epoch")
        _stop_on_signal(points, decision)
    if epochs > 0 and not training.interrupted:
        finalize()
    loop.hook("on_train_end", training.logs or None)


def evaluate(loop: Loop, execution: StepExecutor, batches: Batches) -> Logs:
    """Evaluates all batches, from the first one; as in Keras, that of a generator is the next one.

    on_test_begin
    for each execution of k steps:
        on_test_batch_begin
        take k steps
        on_test_batch_end
    on_test_end
    """
    model = loop.model

    def end(step: int, steps: int, logs: Logs) -> None:
        loop.hook("on_test_batch_end", step, logs)

    hooks = _BatchHooks("test", "stop_evaluating", partial(loop.hook, "on_test_batch_begin"), end)
    model.stop_evaluating = False
    with loop.heartbeat.phase(_phase_of_reading(batches)):
        batches.rewind()
    loop.hook("on_test_begin")
    model.reset_metrics()
    with loop.heartbeat.phase(_phase_of_reading(batches)):
        batches.on_epoch_begin()
        cursor = Cursor(batches, 0)
    logs = _take_steps(loop, execution, cursor, loop.pace(hooks), hooks, {})
    if not model.stop_evaluating:
        with loop.heartbeat.phase(_phase_of_reading(batches)):
            batches.on_epoch_end()
    loop.hook("on_test_end", logs)
    return logs


def predict(loop: Loop, prediction: Predictor, batches: Batches) -> Iterator[Any]:
    """Predicts all batches, and yields the outputs of each execution.

    on_predict_begin
    for each execution of k batches:
        on_predict_batch_begin
        predict them
        on_predict_batch_end
    on_predict_end
    """
    model, heartbeat = loop.model, loop.heartbeat

    def end(step: int, steps: int, logs: Logs) -> None:
        loop.hook("on_predict_batch_end", step, logs)

    begin = partial(loop.hook, "on_predict_batch_begin")
    hooks = _BatchHooks("predict", "stop_predicting", begin, end)
    pace = loop.pace(hooks)
    model.stop_predicting = False
    loop.hook("on_predict_begin")
    with heartbeat.phase(_phase_of_reading(batches)):
        batches.on_epoch_begin()
        cursor = Cursor(batches, 0)
    decision = _decide(loop, hooks, pace)
    while cursor.more and not decision.stop:
        first = cursor.step
        hooks.begin(first)
        pace.begin()
        with heartbeat.phase(_phase_of_steps(batches)):
            done, results = cursor.take(prediction.run, decision.steps)
        pace.end(done)
        if done:
            outputs = concatenate([part for result in results for part in result])
            hooks.end(first + (loop.steps_per_execution or done) - 1, done, {"outputs": outputs})
            with heartbeat.paused():
                yield outputs
        decision = _decide(loop, hooks, pace)
    if not decision.stop:
        with heartbeat.phase(_phase_of_reading(batches)):
            batches.on_epoch_end()
    loop.hook("on_predict_end")


class _BatchHooks(NamedTuple):
    """What fires around the executions of a mode: train, test or predict.

    `end` gets the index of an execution's last step, its number of steps and the logs.
    """

    mode: str
    stop_flag: str
    begin: Callable[[int], None]
    end: Callable[[int, int, Logs], None]


def _take_steps(
    loop: Loop, execution: StepExecutor, cursor: Cursor, pace: Pace, hooks: _BatchHooks, logs: Logs
) -> Logs:
    """Takes the steps that `cursor` has left of its epoch, and returns the epoch's logs.

    Before each execution all tasks agree whether to go on, and on its number of steps. As in Keras
    an epoch that has begun has one. `logs` are those of the steps already taken, if there are any.
    """
    start = cursor.step
    logs = logs if start else {}
    decision = _decide(loop, hooks, pace)
    goes_on = not (decision.stop and start)
    while goes_on and cursor.more:
        first = cursor.step
        hooks.begin(first)
        # The first execution after a resume may read the data on to its place.
        skips = first == start > 0 and not cursor.batches.in_memory
        phase = Phase.SKIPPING if skips else _phase_of_steps(cursor.batches)
        pace.begin()
        with loop.heartbeat.phase(phase):
            take = partial(_take, loop, execution, hooks, decision.single_step)
            done, results = cursor.take(take, decision.steps)
        pace.end(done)
        if done:
            logs = as_numbers(results[-1])
            if decision.hooks_follow:
                execution.settle()
            # A fixed number of steps is what Keras tells the hooks, whatever the last one took.
            hooks.end(first + (loop.steps_per_execution or done) - 1, done, logs)
        decision = _decide(loop, hooks, pace)
        goes_on = not decision.stop
        if loop.points is not None:
            if decision.due or decision.signal:
                execution.settle()
            if decision.due and hooks.mode == "train":
                loop.points.visit("step", decision.due)
                goes_on = goes_on and not loop.points.leaves_epoch
            _stop_on_signal(loop.points, decision)
    execution.settle()
    if goes_on and cursor.ended_early:
        warnings.warn(
            "Your input ran out of data; interrupting training. Make sure that your dataset or "
            "generator can generate at least `steps_per_epoch * epochs` batches. You may need to "
            "use the `.repeat()` function when building your dataset.",
            stacklevel=2,
        )
    if not cursor.step:
        return logs
    # Hooks may have updated metrics since; a step's own values are not among the metrics, and as in
    # Keras they are the logs where its names are not the metrics'. Read where no step was left as
    # well, by the graph that reads them in a segment that nobody cut off.
    metrics = as_numbers(loop.read_metrics())
    return metrics if set(metrics) == set(logs) else logs


def _take(
    loop: Loop,
    execution: StepExecutor,
    hooks: _BatchHooks,
    alone: bool,
    segment: Segment,
    steps: int,
) -> ExecutionResult:
    """Takes steps of a segment, if any; all variables are there before the first of training."""
    if loop.points is not None and hooks.mode == "train":
        loop.points.before_step(partial(execution.make_variables, segment, alone=alone))
    return execution.run(segment, steps, alone=alone) if steps else ExecutionResult(0, {})


def _phase_of_reading(batches: Batches) -> Phase:
    """Where a task is while it begins to read: whether code or files of the user's can delay it."""
    return Phase.WORK if batches.in_memory else Phase.INPUT


def _phase_of_steps(batches: Batches) -> Phase:
    """Where a task is while steps are taken: whether it may be waiting for the user's data."""
    return Phase.STEP if batches.in_memory else Phase.READING_STEP


class StepDecision(NamedTuple):
    """What all tasks decide together between two executions.

    Attributes:
        stop: Whether any wants the epoch, or the evaluation, to end here.
        steps: Steps of the next execution, the fewest that any wants.
        due: Whose save point it is, on any, as `SavePoints.due_on_this_task` says it.
        failed: Whether what was being saved could not be, on any.
        signal: The signal that any has received, or 0.
        single_step: Whether on any every execution is of one step; all must run the same graph.
        hooks_follow: Whether on any the executions have a fixed length, after which hooks look.
    """

    stop: bool
    steps: int
    due: int
    failed: bool
    signal: int
    single_step: bool
    hooks_follow: bool


def _decide(loop: Loop, hooks: _BatchHooks, pace: Pace) -> StepDecision:
    """Asks all tasks, and tells the model what they said; on all tasks at the same step."""
    stop = bool(getattr(loop.model, hooks.stop_flag))
    until, due, failed = FOREVER, 0, False
    if loop.points is not None:
        until, due, failed = loop.points.due_on_this_task()
        until = until if hooks.mode == "train" else FOREVER
    signal = 0 if loop.signals is None else loop.signals.received
    single_step, hooks_follow = pace.fixed == 1, pace.fixed is not None
    decision = StepDecision(
        stop, min(pace.steps, until), due, failed, signal, single_step, hooks_follow
    )
    if not loop.host_collectives.is_alone:
        began = time.monotonic()
        views = loop.host_collectives.all_gather(decision)
        if loop.points is not None:
            loop.points.note_usual(time.monotonic() - began)
        decision = StepDecision(
            bool(views[:, 0].any()),
            int(views[:, 1].min()),
            int(np.bitwise_or.reduce(views[:, 2].astype("int64"))),
            bool(views[:, 3].any()),
            int(views[:, 4].max()),
            bool(views[:, 5].any()),
            bool(views[:, 6].any()),
        )
        setattr(loop.model, hooks.stop_flag, decision.stop)
    if loop.points is not None:
        loop.points.fail_if(decision.failed)
    loop.heartbeat.beat(loop.progress.step)
    return decision


def _stop_on_signal(points: SavePoints, decision: StepDecision) -> None:
    """Saves this very step on all tasks, and leaves training, where a signal came to any."""
    if decision.signal:
        points.visit("stop")
        stop(decision.signal)


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
            profiles = profiles_batches(callback)
            writes_speed = getattr(callback, "write_steps_per_second", False)
            return getattr(callback, frequency, None) == "epoch" and not (profiles or writes_speed)
    return False
