"""The optimizer's updates that have conditionals, run once for all replicas.

Gradient accumulation and `ema_overwrite_frequency` use `tf.cond` with variables that live on all
replicas. TensorFlow does not support this inside a replica, so here each such `tf.cond` is run in
the cross-replica context. With gradient accumulation the gradients are summed over the replicas in
the branch that updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.distribute.contexts import merge
from kfit.exactness.collectives import sum_gradients
from kfit.exactness.gradient_sums import is_dense
from kfit.exactness.replica_context import Step, current_step
from kfit.internals.optimizers import (
    accumulated_gradients,
    index_of,
    is_overwritten,
    overwrite_variables,
    overwrite_with_average,
    require_known,
    step_count,
    trainable_variables,
    update_average,
    update_variables,
    without_empty_gradients,
)

Tensor = Any
Optimizer: TypeAlias = keras.optimizers.Optimizer


def needs_all_replicas(optimizer: Optimizer) -> bool:
    """Returns whether an optimizer's update must be run once for all replicas (`apply_together`).

    That is so if the update has a `tf.cond` with variables that live on all replicas, which
    TensorFlow does not support inside a replica.
    """
    return bool(
        optimizer.gradient_accumulation_steps
        or (optimizer.use_ema and optimizer.ema_overwrite_frequency)
    )


def accumulates_apart(optimizer: Optimizer) -> bool:
    """Returns whether each replica accumulates its own gradients for an optimizer.

    If so, dense gradients are summed over the replicas only once in `gradient_accumulation_steps`
    steps. The result is False for an optimizer without `gradient_accumulation_steps`, and in two
    more cases: if the current step has no variables for such gradients (`Step.accumulation` is
    None), as on a TPU; and if Keras overwrites some variables with their "gradients", as in float8
    training.
    """
    step = current_step()
    assert step is not None
    return bool(
        optimizer.gradient_accumulation_steps
        and step.accumulation is not None
        and not any(
            is_overwritten(optimizer, variable) for variable in trainable_variables(optimizer)
        )
    )


def apply_together(
    optimizer: Optimizer, grads: list[Tensor], variables: list[Any], *, waits: bool
) -> None:
    """Does what `Optimizer.apply` does, but evaluates its conditions once for all replicas.

    Such a condition is whether this step updates the variables. The code follows
    `BaseOptimizer.apply` and `_backend_apply_gradients` of Keras 3.

    Args:
        optimizer: The optimizer.
        grads: The gradients. Sparse gradients are summed over the replicas; dense ones only if
            `waits` is False.
        variables: The variables of the gradients.
        waits: Whether the sum of dense gradients waits for a step that updates the variables. Until
            then each replica accumulates its own gradients.
    """
    step = current_step()
    assert step is not None
    require_known(optimizer, variables)
    grads, variables = without_empty_gradients(optimizer, grads, variables)
    grads, variables = overwrite_variables(optimizer, grads, variables)
    if optimizer.loss_scale_factor is not None:
        grads = [grad / optimizer.loss_scale_factor for grad in grads]
    window = optimizer.gradient_accumulation_steps

    def everywhere(_: Any, grads: list[Tensor]) -> None:
        if window:
            _accumulate_or_update(optimizer, step, grads, variables, window, waits)
        else:
            step.on_each_replica(lambda *g: update_variables(optimizer, g, variables), tuple(grads))
        if optimizer.use_ema:
            step.on_each_replica(lambda: update_average(optimizer))
            _maybe_overwrite_with_average(optimizer)
        step.on_each_replica(lambda: _finish(optimizer, variables))

    merge(everywhere, (list(grads),))


def _accumulate_or_update(
    optimizer: Optimizer,
    step: Step,
    grads: list[Tensor],
    variables: list[Any],
    window: int,
    waits: bool,
) -> None:
    places = [index_of(optimizer, variable) for variable in variables]
    accumulated = accumulated_gradients(optimizer)
    totals = [accumulated[place] for place in places]
    parts: dict[int, tf.Variable] = {}
    if waits:
        assert step.accumulation is not None
        for i, grad in enumerate(grads):
            if is_dense(step.strategy.local_results(grad)[0]):
                parts[i] = step.accumulation.part(optimizer, places[i])

    def update(*grads: Tensor) -> None:
        sums = dict(enumerate(grads))
        late = sum_gradients([part + grads[i] for i, part in parts.items()])
        sums.update(zip(parts, late, strict=True))
        for part in parts.values():
            part.assign(tf.zeros_like(part))
        means = [(sums[i] + total) / window for i, total in enumerate(totals)]
        update_variables(optimizer, means, variables)
        for total in totals:
            total.assign(tf.zeros_like(total))

    def accumulate(*grads: Tensor) -> None:
        for i, (grad, total) in enumerate(zip(grads, totals, strict=True)):
            if i in parts:
                parts[i].assign_add(grad)
            else:
                total.assign(grad + total)

    def branch(fn: Callable[..., None]) -> Callable[[], Tensor]:
        def taken() -> Tensor:
            step.on_each_replica(fn, tuple(grads))
            return tf.constant(True)

        return taken

    due = (tf.convert_to_tensor(step_count(optimizer)) + 1) % window == 0
    tf.cond(due, branch(update), branch(accumulate))


def _maybe_overwrite_with_average(optimizer: Optimizer) -> None:
    every = optimizer.ema_overwrite_frequency
    if not every:
        return

    def overwrite() -> Tensor:
        overwrite_with_average(optimizer)
        return tf.constant(True)

    due = (tf.convert_to_tensor(optimizer.iterations) + 1) % every == 0
    tf.cond(due, overwrite, lambda: tf.constant(False))


def _finish(optimizer: Optimizer, variables: list[Any]) -> None:
    for variable in variables:
        if variable.constraint is not None:
            variable.assign(variable.constraint(variable))
    step_count(optimizer).assign_add(1)
