"""The loops of `fit`, `evaluate` and `predict`, from which all hooks of callbacks are called.

A loop has no code for strategies, devices or tensors. It takes steps by executions, which are graph
calls of one or more steps. Between executions the loop decides together with the other tasks how to
continue. So all tasks take the same steps, and save and stop after the same step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from kfit.fault_sites import Site, reach
from kfit.heartbeat import Phase
from kfit.heartbeat.clock import BUILDING
from kfit.heartbeat.tracebacks import warn_user
from kfit.inputs import Batches, Cursor, Segment
from kfit.inputs.python import PythonBatches
from kfit.internals.models import loss_tracker
from kfit.steps.build import naming_wrong_data
from kfit.steps.execution import StepExecutor
from kfit.steps.metrics import as_numbers
from kfit.steps.pace import Pace
from kfit.steps.prediction import concatenate
from kfit.training.batch_hooks import BatchHooks
from kfit.training.beginning import agree_on_beginning
from kfit.training.call import Call
from kfit.training.decision import StepDecision, decide
from kfit.training.fit_state import FitState
from kfit.training.numbers_only import require_numbers
from kfit.training.progress_bar import end_lines_of_bars
from kfit.training.save_points import SavePoints
from kfit.training.stop_signals import (
    StopSignals,
    after_step,
    stop,
    stop_after_fit,
    tell_what_is_saved,
)

Logs = dict[str, Any]

_RAN_OUT = (
    "Your input ran out of data; interrupting training. Make sure that your dataset or "
    "generator can generate at least `steps_per_epoch * epochs` batches. You may need to "
    "use the `.repeat()` function when building your dataset."
)
"""Keras' warning of an epoch that has fewer steps than `steps_per_epoch`."""


def fit(state: FitState, executor: Callable[[], StepExecutor]) -> None:
    """Trains until all epochs are done, or until a callback or a signal stops training.

    The order of what happens:

        look for a snapshot to resume from
        on_train_begin
        for each epoch:
            on_epoch_begin
            for each execution (graph call) of k steps:
                on_train_batch_begin
                take k steps
                on_train_batch_end
                all tasks decide: stop? save?
                save point (callbacks may save or restore the state of training)
            on_test_*, if the epoch is validated
            on_epoch_end
            all tasks decide whether to stop
            save point
        finalize the variables
        on_train_end

    A snapshot that was taken between two epochs is restored after `on_train_begin`. A snapshot from
    the middle of an epoch is restored after the `on_epoch_begin` of that epoch. If a signal stops
    training, no further hook of Keras is called. If a callback interrupts training, `on_train_end`
    is called.

    Args:
        state: The state of this `fit`: model, data, callbacks and so on.
        executor: Returns the object that runs the train step. It is asked in every epoch, since a
            hook may compile the model again.

    Raises:
        KeyboardInterrupt: If SIGINT (Ctrl-C) has stopped training, or arrived as it ended.
        Preempted: If a different signal has done so.
        PeerFailedError: If a callback has failed on another task. An error on this task is raised
            as it is.
    """
    call, heartbeat = state.call, state.call.heartbeat
    executor().settle()  # an earlier call may have failed before it did so
    points = call.points = SavePoints(state, heartbeat)
    succeeded = False
    with StopSignals(saves=points.save_stops) as call.signals:
        try:
            with heartbeat.phase(Phase.RESTORING):
                points.begin()
            call.account.enter_loop()
            with call.naming():  # before the error is reported below
                _fit(state, points, executor)
            with heartbeat.phase(Phase.SAVING):
                points.end()
            # A signal during the last hooks ends this call by an error, too.
            succeeded = not (state.interrupted or call.signals.received)
        except BaseException as error:
            # Reported at once, since the cleanup below may take long, or fail as well.
            cause = points.cause_of(error)
            heartbeat.note_error(cause)
            if cause is not error:
                raise cause from (cause.__cause__ or error)
            raise
        finally:
            with heartbeat.phase(Phase.SAVING):
                points.leave(succeeded)
            # Otherwise the user's arrays, which the state refers to, would stay in memory until
            # Python's garbage collector finds the cycle.
            call.points = None
    if signum := call.signals.received:  # too late for the loop
        stop_after_fit(heartbeat, signum)


def _fit(state: FitState, points: SavePoints, executor: Callable[[], StepExecutor]) -> None:
    call, model, progress, batches = state.call, state.model, state.progress, state.batches

    def took(steps: int, logs: Logs) -> None:
        progress.advance(steps)
        state.logs = logs

    hooks = BatchHooks("train", "stop_training", call.hook, took)
    model.stop_training = False
    with _reading(call, batches):
        batches.rewind()
    call.hook("on_train_begin")
    state.note_beginning()
    execution = executor()
    points.remember()
    agree_on_beginning(state)
    batches.first_epoch = progress.epoch  # a snapshot of kfit may replace it
    pace = call.pace(hooks)  # `on_train_begin` may have put batch hooks on a callback
    is_held_up = state.interrupted  # a callback may do so before the first step
    while not is_held_up:
        points.restore(in_epoch=False)
        _make_variables(state, points, execution, pace)
        if state.ends_here:
            with state.moving():
                state.settle()
            break
        epoch = progress.epoch
        if _has_ended(state):
            break
        model.reset_metrics()
        call.hook("on_epoch_begin", epoch)
        pace.fixed, call.account.watching = call.fixed_steps(hooks), call.watching(hooks)
        with _reading(call, batches):
            batches.on_epoch_begin()
        execution = executor()  # another one if a hook has compiled the model
        points.restore(in_epoch=True)
        _make_variables(state, points, execution, pace)
        # If training resumes here, batches that cannot be skipped by their index are read again.
        moves = progress.step_in_epoch > 0 or state.goes_on_here
        with state.moving() if moves else _reading(call, batches):
            cursor = Cursor(batches, epoch, progress.step_in_epoch)
        if not cursor.step and _has_ended(state):  # just where the last epoch has ended
            points.visit("epoch")  # the one after that epoch could not know it
            break
        ran_out = partial(_warn_of_short_epoch, state)
        logs = _take_steps(call, execution, cursor, pace, hooks, state.logs, ran_out)
        if state.interrupted:
            points.visit("stop")
            end_lines_of_bars(call.callbacks)
            saved_in = points.saved_in()  # all tasks must ask
            if call.account.shows:
                place = call.heartbeat.reached(progress.step)
                told = f"kfit: interrupted {after_step(place, saved_in)}"
                print(told, file=sys.stderr, flush=True)
            break
        if state.resuming is not None:
            continue
        state.logs = logs
        validates = state.validation is not None and state.should_validate(epoch)
        with state.frozen(logs) if points and validates else nullcontext():
            if not model.stop_training:  # as in Keras, which does not call it then either
                with _reading(call, batches):
                    batches.on_epoch_end()
            if validates:
                logs = {**logs, **_validated(state)}
        reach(Site.EPOCH_END)
        call.hook("on_epoch_end", epoch, logs)
        state.logs = logs
        decision = decide(call, hooks, pace, ends_epoch=True)
        progress.end_epoch()
        points.visit("epoch")
        _stop_on_signal(call, decision)
    if state.epochs > 0 and not state.interrupted:
        state.finalize()
    call.hook("on_train_end", state.logs or None)


def _has_ended(state: FitState) -> bool:
    """Returns whether the data has ended and cannot be read again, and warns if it has."""
    if state.batches.has_ended:
        _warn_of_end(state)
    return state.batches.has_ended


def _warn_of_short_epoch(state: FitState, steps: int) -> None:
    """Warns that the data has ended before the epoch has had all its steps.

    Args:
        state: The state of the `fit`.
        steps: How many steps the epoch has had.
    """
    if state.batches.has_ended and state.progress.epoch + 1 < state.epochs:
        _warn_of_end(state, steps)
    else:
        warn_user(_RAN_OUT)


def _warn_of_end(state: FitState, steps: int = 0) -> None:
    """Warns that the data has ended while epochs are left, if that was not told yet.

    Args:
        state: The state of the `fit`.
        steps: How many steps the present epoch has had.
    """
    if state.told_of_end:
        return
    state.told_of_end = True
    had = f", which had {steps} of {state.batches.steps} steps" if steps else ""
    warn_user(
        "`x` has ended, and cannot be read again: training stops after epoch "
        f"{state.progress.epoch + bool(steps)} of {state.epochs}{had}. Pass data that can be read "
        "again, such as a tf.data.Dataset or a keras.utils.PyDataset, or a generator that does not "
        "end with `steps_per_epoch`."
    )


def _make_variables(
    state: FitState, points: SavePoints, execution: StepExecutor, pace: Pace
) -> None:
    """Creates and restores the variables that only a step creates, if training has resumed.

    Nothing is done if they exist. Hooks that are called before the next step may need them: such a
    variable is a weight's average, if the model's own `train_step` builds the optimizer. Often no
    step of the epoch, or of the whole training, is left to take.
    """
    if state.lacks_variables:
        make = partial(execution.make_variables, single_step=pace.fixed == 1)
        points.before_step(partial(make, state.batches.empty_segment()))


def _validated(state: FitState) -> Logs:
    """Evaluates the validation data, and returns the logs ("val_loss", ...)."""
    assert state.validation is not None
    cached = partial(_evaluated_in_fit, state, state.validation)
    own = state.own_evaluate
    with state.call.account.validating():
        logs = cached() if own is None else own(cached, callbacks=state.call.callback_list)
    return {f"val_{name}": value for name, value in logs.items()}


def _evaluated_in_fit(state: FitState, validation: Batches) -> Logs:
    """Evaluates the validation data; what Python code makes of it can be checked only here."""
    call = state.call

    def is_missed(steps: int) -> bool:
        return validation.has_ended and (not steps or state.progress.epoch + 1 < state.epochs)

    def ran_out(steps: int) -> None:
        if not is_missed(steps):  # else more is said below
            warn_user(_RAN_OUT)

    with _reading(call, validation):
        spec = validation.spec
    try:
        require_numbers(call.model, spec, "test_step")
    except ValueError as error:
        raise ValueError(f"`validation_data` is wrong: {error}") from error
    # A step of the model's own may call its layers with something else than the data.
    is_plain = call.graphs.has_default("test_step")
    named = naming_wrong_data(call.model, "validation_data", lambda: spec)
    with named if is_plain else nullcontext():
        logs = evaluate(call, validation, ran_out)
    if not logs or is_missed(len(logs)):
        warn_user(
            "`validation_data` has ended, and cannot be read again, so that no epoch from now on "
            "is validated. Pass data that can be read again, such as a tf.data.Dataset or a "
            "keras.utils.PyDataset, or a generator that does not end with `validation_steps`."
        )
    return logs


def evaluate(
    call: Call,
    batches: Batches,
    ran_out: Callable[[int], None] = lambda steps: warn_user(_RAN_OUT),
) -> Logs:
    """Evaluates all batches, from the first one; a generator continues where it is, as in Keras.

    The order of what happens:

        on_test_begin
        for each execution (graph call) of k steps:
            on_test_batch_begin
            take k steps
            on_test_batch_end
        on_test_end

    Args:
        call: The model, the callbacks and other objects that the loop works with.
        batches: The data.
        ran_out: Is called with the number of steps if they are fewer than were asked for, since the
            data has ended.

    Returns:
        The loss and the metrics by name.
    """
    model = call.model
    hooks = BatchHooks("test", "stop_evaluating", call.hook)
    model.stop_evaluating = False
    with _reading(call, batches):
        batches.rewind()
    call.hook("on_test_begin")
    execution = call.graphs.execution("test_step")  # a hook may have it traced anew
    model.reset_metrics()
    with _reading(call, batches):
        batches.on_epoch_begin()
        cursor = Cursor(batches, 0)
    logs = _take_steps(call, execution, cursor, call.pace(hooks), hooks, {}, ran_out)
    if not model.stop_evaluating:
        with _reading(call, batches):
            batches.on_epoch_end()
    call.hook("on_test_end", logs)
    return logs


def predict(call: Call, batches: Batches) -> Iterator[Any]:
    """Predicts all batches, and yields the outputs of each execution (a graph call).

    The order of what happens:

        on_predict_begin
        for each execution of k batches:
            on_predict_batch_begin
            predict the batches
            on_predict_batch_end
            yield the outputs
        on_predict_end

    Args:
        call: The model, the callbacks and other objects that the loop works with.
        batches: The data.
    """
    model, heartbeat = call.model, call.heartbeat
    hooks = BatchHooks("predict", "stop_predicting", call.hook)
    model.stop_predicting = False
    call.hook("on_predict_begin")
    prediction = call.graphs.prediction()  # a hook may have it traced anew
    pace = call.pace(hooks)
    with _reading(call, batches):
        batches.on_epoch_begin()
        cursor = Cursor(batches, 0)
    decision, goes_on = decide(call, hooks, pace), True
    while cursor.more and goes_on:  # as in Keras at least once
        first = cursor.step
        hooks.begin(first)
        pace.begin()
        # Threads of a PyDataset may predict as well. Other threads wait: they run the same graphs.
        waits = isinstance(batches, PythonBatches)
        with (
            call.turns.lent(to="predictions") if waits else nullcontext(),
            heartbeat.phase(_phase_of_steps(batches)),
        ):
            done, results = cursor.take(prediction.run, decision.steps)
        pace.end(done)
        if done:
            outputs = concatenate([part for result in results for part in result])
            hooks.end(first + (pace.fixed or done) - 1, {"outputs": outputs})
            with call.turns.lent(to="all"), heartbeat.paused():
                yield outputs
        decision = decide(call, hooks, pace)
        goes_on = not decision.stop
    if goes_on:
        with _reading(call, batches):
            batches.on_epoch_end()
    call.hook("on_predict_end")


def _take_steps(
    call: Call,
    execution: StepExecutor,
    cursor: Cursor,
    pace: Pace,
    hooks: BatchHooks,
    logs: Logs,
    ran_out: Callable[[int], None],
) -> Logs:
    """Takes the steps that are left of an epoch or of an evaluation, and returns the last logs.

    Each execution (graph call) takes one or more steps. Before each execution all tasks decide
    together whether to continue, and how many steps to take. As in Keras, an epoch has at least one
    execution, even if a callback has requested to stop before it.

    If the user has fixed the number k of steps per execution, batch hooks are called as in Keras:
    before the first and after the last of each k steps of the epoch. So that callbacks can save
    training among these steps, kfit may divide the k steps into several executions. No batch hook
    is called between them. If a batch hook requests to stop, training stops after the k steps.

    Args:
        call: The call of `fit` or `evaluate` that is running.
        execution: The object that runs the steps.
        cursor: The position in the steps of the epoch.
        pace: The rule by which the number of steps of an execution is chosen.
        hooks: The batch hooks of training or evaluation.
        logs: The logs before these steps, if steps of the epoch were taken before a restart or a
            rollback; otherwise they are ignored.
        ran_out: Is called with the number of steps if they are fewer than `steps_per_epoch`, since
            the data has ended.
    """
    start, tracker = cursor.step, loss_tracker(call.model)
    logs = logs if start else {}
    decision = decide(call, hooks, pace, start)
    goes_on = not (decision.stop and start == pace.first_step_of_execution(start) > 0)
    while goes_on and cursor.more:
        step = cursor.step
        first = pace.first_step_of_execution(step)
        if step == first:
            hooks.begin(first)
        # The first execution after a resume may have to read the data up to its position.
        skips = step == start > 0 and not cursor.batches.in_memory
        phase = Phase.SKIPPING if skips else _phase_of_steps(cursor.batches)
        pace.begin()
        with call.heartbeat.phase(phase):
            take = partial(_take, call, execution, hooks, decision.single_step)
            # The data may come from a thread that uses the model, such as one that plays games.
            waits = not cursor.batches.in_memory
            with call.turns.lent(to="predictions") if waits else nullcontext():
                done, results = cursor.take(take, decision.steps)
        # Python code in the step may have set the stop flag, which counts after this step.
        pace.end(done, one_by_one=execution.calls_python)
        if done:
            logs = as_numbers(results[-1])
            hooks.took(done, logs)
            if decision.hooks_follow:
                execution.settle()
        ends = not cursor.more or pace.first_step_of_execution(cursor.step) > first
        if ends and cursor.step > first:
            # As in Keras, hooks get the index after a fixed number of steps, even if the execution
            # took fewer.
            hooks.end(first + (pace.fixed or done) - 1, logs)
        if loss_tracker(call.model) is not tracker:
            raise ValueError(
                "`compile` was called among the steps of an epoch or an evaluation, such as in "
                f"`on_{hooks.mode}_batch_end`. The graphs of these steps are made already, so this "
                "fails with Keras' own `fit` as well. Call it in `on_epoch_end`, or between two "
                "`fit`s."
            )
        decision = decide(call, hooks, pace, cursor.step)
        goes_on = not (decision.stop and ends)
        if call.points is not None:
            if decision.due or decision.signal:
                execution.settle()
            if decision.due and hooks.mode == "train":
                call.points.visit("step", decision.due)
                goes_on = goes_on and not call.points.leaves_epoch
            _stop_on_signal(call, decision)
    execution.settle()
    if goes_on and cursor.ended_early:
        ran_out(cursor.step)
    if not cursor.step:
        return logs
    # Hooks may have updated the metrics since, so they are read again. If the step returns values
    # with other names than the metrics', these values are the logs, as in Keras. The metrics are
    # read by the same graph even if training has resumed where no step was left, so that the logs
    # do not depend on an interruption.
    read = call.graphs.read_metrics()
    metrics, is_nested = as_numbers(read), any(isinstance(value, dict) for value in read.values())
    method = "train_step" if hooks.mode == "train" else "test_step"
    own = call.graphs.returns_nested(method) or (is_nested and not call.graphs.has_default(method))
    return metrics if set(metrics) == set(logs) and not own else logs


def _take(
    call: Call,
    execution: StepExecutor,
    hooks: BatchHooks,
    single_step: bool,
    segment: Segment,
    steps: int,
) -> tuple[int, Logs]:
    """Takes the next steps of an epoch in one execution (a graph call).

    Before the first step of training, the variables that only a step creates are created.

    Args:
        call: The call of `fit` or `evaluate` that is running.
        execution: The object that runs the steps.
        hooks: The batch hooks, which tell whether this is training.
        single_step: Whether every execution has exactly one step.
        segment: The batches that one execution may take.
        steps: The number of steps to take.

    Returns:
        The number of steps taken, and the logs after the last one.
    """
    if hooks.mode != "train":
        reach(Site.VALIDATION)
        return execution.run(segment, steps, single_step=single_step)[:2]
    if call.points is not None:
        call.points.before_step(partial(execution.make_variables, segment, single_step=single_step))
    reach(Site.EXECUTION)
    before = call.strategy.seconds_of_exchanges
    taken = execution.run(segment, steps, single_step=single_step)
    after = call.strategy.seconds_of_exchanges
    if taken.steps:
        exchange = None if before is None or after is None else after - before
        call.account.took(taken.steps, taken.examples, exchange)
    return taken.steps, taken.logs


@contextmanager
def _reading(call: Call, batches: Batches) -> Iterator[None]:
    """Context in which a task begins or ends reading the data; its phase is `WORK` or `INPUT`.

    The phase says what the task is doing. The task reports it to the supervisor (`kfit run`), the
    process that watches the tasks. The supervisor decides by the phase how long the task may take
    before it counts as hung. With `INPUT` the user's code or files may cause a delay, and other
    threads may use the model meanwhile. Data that is in memory causes none, so the phase is `WORK`.
    In the report of a `fit`, such time is part of the building, since only the first epoch makes a
    pipeline.
    """
    if batches.in_memory:
        with call.heartbeat.phase(Phase.WORK, counted=BUILDING):
            yield
    else:
        with call.turns.lent(to="predictions"), call.heartbeat.phase(Phase.INPUT):
            yield


def _phase_of_steps(batches: Batches) -> Phase:
    """Returns the phase of a task that takes steps: `STEP` or `READING_STEP`.

    The phase says what the task is doing. The task reports it to the supervisor (`kfit run`), the
    process that watches the tasks. The supervisor decides by the phase how long the task may take
    before it counts as hung. With `READING_STEP` a step may have to wait for the user's data. If
    the data is in memory, no step waits for it, so the phase is `STEP`.
    """
    return Phase.STEP if batches.in_memory else Phase.READING_STEP


def _stop_on_signal(call: Call, decision: StepDecision) -> None:
    """Ends training with an error on all tasks if any task has received a signal, such as SIGTERM.

    Before that, callbacks may save the state after this step (the save point "stop").

    Args:
        call: The call that is running; outside of `fit` nothing is done.
        decision: What all tasks have decided, which contains the signal.
    """
    if decision.signal and call.points is not None:
        call.points.visit("stop")
        end_lines_of_bars(call.callbacks)
        tell_what_is_saved(
            call.heartbeat,
            decision.signal,
            call.progress.step,
            call.points.saved_in(),
            is_chief=call.strategy.is_chief,
            is_own=call.signals is not None and call.signals.received > 0,
        )
        stop(decision.signal)
