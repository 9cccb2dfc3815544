"""The decision that all tasks make together between two executions: whether and how to go on."""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from kfit.steps.execution import Pace
from kfit.training.batch_hooks import BatchHooks
from kfit.training.call import Call
from kfit.training.save_points import FOREVER


class StepDecision(NamedTuple):
    """What all tasks decide together between two executions.

    Attributes:
        stop: Whether any wants the epoch, or the evaluation, to end here.
        steps: Steps of the next execution, the fewest that any wants.
        due: Which callbacks are due on any, a bit for each, as in `SavePoints.due_on_this_task`.
        failed: Whether a hook has failed on any.
        signal: The signal that any has received, or 0.
        single_step: Whether on any every execution is of one step; all must run the same graph.
        hooks_follow: Whether on any the executions have a fixed number of steps, so that hooks may
            look at the model after each.
    """

    stop: bool
    steps: int
    due: int
    failed: bool
    signal: int
    single_step: bool
    hooks_follow: bool


def decide(call: Call, hooks: BatchHooks, pace: Pace, step: int = 0) -> StepDecision:
    """Makes the decision with all tasks, and sets the model's stop flag to it; a collective.

    `step` is the epoch's next step.

    Raises:
        Exception: The error of a hook that has failed on this task.
        PeerFailedError: If a hook has failed on another task.
    """
    decision = _on_this_task(call, hooks, pace, step)
    collectives = call.strategy.host_collectives
    if not collectives.is_alone:
        began = time.monotonic()
        views = collectives.all_gather(decision)
        if call.points is not None:
            call.points.note_usual(time.monotonic() - began)
        decision = StepDecision(
            stop=bool(views[:, 0].any()),
            steps=int(views[:, 1].min()),
            due=int(np.bitwise_or.reduce(views[:, 2].astype("int64"))),
            failed=bool(views[:, 3].any()),
            signal=int(views[:, 4].max()),
            single_step=bool(views[:, 5].any()),
            hooks_follow=bool(views[:, 6].any()),
        )
        setattr(call.model, hooks.stop_flag, decision.stop)
    if call.points is not None:
        call.points.fail_if(decision.failed)
    call.heartbeat.beat(call.progress.step)
    return decision


def _on_this_task(call: Call, hooks: BatchHooks, pace: Pace, step: int) -> StepDecision:
    until, due, failed = FOREVER, 0, False
    if call.points is not None:
        until, due, failed = call.points.due_on_this_task()
    return StepDecision(
        stop=bool(getattr(call.model, hooks.stop_flag)),
        steps=min(pace.steps_from(step), until if hooks.mode == "train" else FOREVER),
        due=due,
        failed=failed,
        signal=0 if call.signals is None else call.signals.received,
        single_step=pace.fixed == 1,
        hooks_follow=pace.fixed is not None,
    )
