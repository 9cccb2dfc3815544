"""The step decision: all tasks decide together how to continue after a graph call (an execution).

Each execution takes one or more steps. In between, the tasks exchange what each of them wants.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np

from kfit.checkpoint.callback_attributes import is_of_library
from kfit.distribute.variable_values import is_per_replica, value_here
from kfit.exactness.row_states import states_of_rows
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.optimizers import learning_rate_variable
from kfit.steps.pace import Pace
from kfit.training.batch_hooks import BatchHooks
from kfit.training.call import Call
from kfit.training.save_points import FOREVER

_ROUNDING = 1e-5
"""By what part of it a sum over the weights may differ between hosts of different processors."""

_ROUNDING_OF_ONE = 1e-3
"""By what part of it the sum over one variable may; and a value of `_SMALL` counts as none."""

_SMALL = 1e-4

_AT_ONCE = 1 << 20
"""The number of weights that are copied as float64 at a time."""

_ON_EVERY_WORKER = (
    "Do so on every worker: neither under `if kfit.saving.is_chief()`, nor in a callback that "
    "only the chief runs, as one that was passed to `chief_only`, or whose class derives from a "
    "callback of Weights & Biases, MLflow or another tracker."
)


class StepDecision(NamedTuple):
    """What all tasks decide together between two executions (graph calls of one or more steps).

    What a single task wants has the same form; the tasks exchange it in order to decide.

    Attributes:
        stop: Whether at least one task wants to end the epoch, the evaluation or the prediction.
        steps: The number of steps in the next execution: the smallest number that a task wants.
        due: The callbacks to call now: those whose `is_due` is True on at least one task. The value
            has a bit for each callback, as in `SavePoints.due_on_this_task`.
        failed: Whether a hook has failed on at least one task.
        signal: The number of a signal, such as SIGTERM, that a task has received; 0 if there is
            none.
        single_step: Whether at least one task takes only one step in each execution. Then all tasks
            must use the graph of a single step.
        hooks_follow: Whether at least one task takes a fixed number of steps in each execution.
            Then batch hooks may read the model after each execution. So before these hooks all
            tasks sum the gradients that each replica has accumulated by itself.
        examples: The number of examples that were trained on since the last decision, over all
            tasks; -1 if it is not known. What a single task wants has those that the task has read.
        learning_rate: The optimizer's learning rate on this task. It must be equal on all tasks; a
            hook can change it. 0.0 if no hook can, or on a task that trains alone.
        compares_weights: Whether the tasks compare their weights next, since an epoch has ended and
            this task has hooks of the program, which may have changed them.
    """

    stop: bool
    steps: int
    due: int
    failed: bool
    signal: int
    single_step: bool
    hooks_follow: bool
    examples: int = 0
    learning_rate: float = 0.0
    compares_weights: bool = False


def decide(
    call: Call, hooks: BatchHooks, pace: Pace, step: int = 0, *, ends_epoch: bool = False
) -> StepDecision:
    """Decides together with all tasks how to continue after an execution (a graph call).

    The decision whether to stop is also written to the model's stop flag, such as `stop_training`.
    It is a collective: all tasks must call it.

    Args:
        call: The call of `fit`, `evaluate` or `predict` that is running.
        hooks: The batch hooks of this mode, with the name of the model's stop flag.
        pace: The rule by which this task chooses the number of steps of an execution.
        step: The index of the next step in the epoch.
        ends_epoch: Whether the hooks at the end of an epoch of training have just been called.

    Raises:
        Exception: The error of a hook that has failed on this task.
        PeerFailedError: If a hook has failed on another task.
        ValueError: If a hook has changed the learning rate or the weights on some tasks only.
    """
    decision = _on_this_task(call, hooks, pace, step)
    if ends_epoch:
        compares = any(map(_has_code_of_program, call.callbacks))
        decision = decision._replace(compares_weights=compares)
    counts = [decision.examples]
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
        counts = [int(count) for count in views[:, 7]]
        if not decision.failed:
            _require_one_rate(views[:, 8])
            if views[:, 9].any():
                weights = _weights_to_compare(call.model)
                sums = collectives.all_gather([_sum_of_squares(each) for each in weights])
                _require_same_weights(weights, sums)
        setattr(call.model, hooks.stop_flag, decision.stop)
    call.account.share_examples(counts)
    if call.points is not None:
        call.points.fail_if(decision.failed)
    call.heartbeat.beat(call.progress.step, trains=call.points is not None)
    return decision


def _on_this_task(call: Call, hooks: BatchHooks, pace: Pace, step: int) -> StepDecision:
    until, due, failed = FOREVER, 0, False
    if call.points is not None:
        until, due, failed = call.points.due_on_this_task()
    stop = bool(getattr(call.model, hooks.stop_flag))
    # A hook may ask to stop before the first step; as in Keras one execution follows all the same.
    steps = 1 if stop and pace.fixed is None else pace.steps_from(step)
    return StepDecision(
        stop=stop,
        steps=min(steps, until if hooks.mode == "train" else FOREVER),
        due=due,
        failed=failed,
        signal=0 if call.signals is None else call.signals.received,
        single_step=pace.fixed == 1,
        hooks_follow=pace.fixed is not None,
        examples=call.account.unshared_examples,
        learning_rate=_rate_on_this_task(call, hooks),
    )


def _rate_on_this_task(call: Call, hooks: BatchHooks) -> float:
    variable = learning_rate_variable(getattr(call.model, "optimizer", None))
    if hooks.mode != "train" or variable is None or call.strategy.host_collectives.is_alone:
        return 0.0
    return float(value_here(variable))


def _weights_to_compare(model: keras.Model) -> list[keras.Variable]:
    """Returns the weights that a model has alike on all tasks, trainable ones and others."""
    own = {id(state) for state in states_of_rows(model)}
    return [v for v in model.weights if not is_per_replica(v) and id(v) not in own]


def _sum_of_squares(variable: keras.Variable) -> float:
    """Returns the sum of the squares of the values that a variable has on this task."""
    total = 0.0
    values = value_here(variable).ravel()
    for first in range(0, values.size, _AT_ONCE):
        part = values[first : first + _AT_ONCE].astype("float64")
        total += float(part @ part)
    return total


def _has_code_of_program(callback: keras.callbacks.Callback) -> bool:
    is_made_of_functions = isinstance(callback, keras.callbacks.LambdaCallback)
    return is_made_of_functions or not is_of_library(type(callback))


def _require_one_rate(rates: np.ndarray) -> None:
    """Raises an error if tasks have different learning rates.

    Args:
        rates: The learning rate of each task. The chief's is the first.
    """
    if np.array_equal(rates, np.full_like(rates, rates[0]), equal_nan=True):
        return
    raise _changed_on_some(
        "The learning rate of the optimizer must be the same on every worker. It is",
        [f"{float(np.float32(rate)):g}" for rate in rates],
        "it",
    )


def _require_same_weights(weights: Sequence[keras.Variable], sums: np.ndarray) -> None:
    """Raises an error if tasks have different weights, but not for a difference of rounding.

    Of weights that are not trained, such as a moving mean, it warns: a layer of the program's may
    assign a value to them that is that of a worker's own examples.

    Args:
        weights: The weights of the model.
        sums: The sum of the squares of each weight, of shape `(tasks, weights)`. Those of the chief
            are the first.
    """
    small = _SMALL**2 * np.array([np.prod(each.shape) for each in weights])
    same = np.isclose(sums, sums[0], rtol=_ROUNDING_OF_ONE, atol=small, equal_nan=True).all(0)
    are_trained = np.array([each.trainable for each in weights], dtype=bool)
    trained = sums[:, are_trained]
    totals = trained.sum(1)
    if trained.size and same[are_trained].all() and np.isfinite(totals).all():
        furthest = np.flatnonzero(are_trained)[np.abs(trained - trained[0]).max(0).argmax()]
        same[furthest] = np.allclose(totals, totals[0], rtol=_ROUNDING, atol=0.0)
    for index in np.flatnonzero(~same & are_trained).tolist():
        raise _changed_on_some(
            "The weights of the model must be the same on every worker. The sum of the squares of "
            f"{weights[index].path!r} is",
            [f"{each:.7g}" for each in sums[:, index]],
            "them",
        )
    for index in np.flatnonzero(~same & ~are_trained).tolist():
        warn_user(
            f"{weights[index].path!r}, a weight that is not trained, is not the same on every "
            "worker. Its value in a saved model is that of the chief. If a callback has changed "
            f"it on some workers only: {_ON_EVERY_WORKER[0].lower()}{_ON_EVERY_WORKER[1:]}"
        )


def _changed_on_some(rule: str, values: list[str], changed: str) -> ValueError:
    """Returns the error of what a callback has changed on some tasks only.

    Args:
        rule: What must be the same, and the beginning of what it is.
        values: What it is on each task. The chief's is the first.
        changed: The pronoun for what was changed.
    """
    listed = ", ".join(f"{value} on worker {index}" for index, value in enumerate(values))
    return ValueError(
        f"{rule} {listed}: a callback has changed {changed} on some workers only. "
        f"{_ON_EVERY_WORKER}"
    )
