"""Steps that change or use gradients before the optimizer gets them, such as by clipping them.

If a user's `train_step` clips the gradients that a tape returns, it clips those of one replica's
examples. The sum of the clipped gradients differs from one device's gradient. kfit can detect this
only when the step passes the gradients to the optimizer. It then traces the step a second time,
with a tape that returns gradients summed over the replicas ("early sums"). So it does if a step
logs what it computes from gradients, such as their norm, or assigns it to a variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.batch_warnings import are_used
from kfit.exactness.collectives import sum_gradients, with_gradient
from kfit.exactness.replica_context import Replica, current_step
from kfit.graphs.kinds import Kinds
from kfit.heartbeat.tracebacks import warn_user

Tensor = Any


class ChangedGradientsError(Exception):
    """The error that a step changes or uses gradients before the optimizer gets them.

    `kfit.steps.execution` catches the error, sets `GradientSums.early` and traces the step again.
    Then a tape returns gradients that are summed over the replicas.
    """


def report_use(values: Sequence[Any], replica: Replica) -> None:
    """Reports that a step computes values that each replica cannot compute without the others.

    If they are computed from gradients of weights, each replica can compute them from early sums.
    Otherwise, and if the step already has early sums or cannot have them, nothing is done.

    Args:
        values: The values, tensors of the replica's step.
        replica: The replica that is being traced.

    Raises:
        ChangedGradientsError: If early sums may help, and were not tried yet.
    """
    step = current_step()
    assert step is not None
    if step.gradient_sums is None or step.gradient_sums.early or replica.postponed is not None:
        return
    if any(are_used(value, replica.gradients.keys(), replica) for value in values):
        raise ChangedGradientsError


def report_changes(replica: Replica) -> None:
    """Reports that a step has changed gradients between the tape and the optimizer.

    Only nonlinear changes matter, such as clipping. They need early sums: the gradients must be
    summed over the replicas before the step changes them. If the step already has early sums, or
    cannot have them, kfit only warns.

    Args:
        replica: The replica that is being traced.

    Raises:
        ChangedGradientsError: If early sums may help, and were not tried yet.
    """
    step = current_step()
    assert step is not None
    if step.gradient_sums is not None and not step.gradient_sums.early:
        raise ChangedGradientsError
    when = "by numbers that differ between replicas, such as random ones"
    if not replica.tape_sums:
        when = "before they are summed over the replicas"
    warn_user(
        f"`train_step` changes gradients {when}, so that the numbers depend on how many replicas "
        "there are. Let the optimizer change them, which it does after the sum: by `clipnorm`, "
        "`global_clipnorm` or `clipvalue`, or in an `apply` of your own."
    )


def is_changed(grad: Any, replica: Replica) -> bool:
    """Returns whether a gradient is no longer a mean, a sum or a total of these over the examples.

    A step that clips a gradient changes it so.
    """
    return "other" in _kinds_of(grad, replica)


def is_whole(grad: Any, replica: Replica) -> bool:
    """Returns whether a gradient is computed only from gradients summed over the replicas.

    Such a gradient is equal on all replicas, and must not be summed again.
    """
    return replica.tape_sums and not _kinds_of(grad, replica)


def _kinds_of(grad: Any, replica: Replica) -> Kinds:
    return kinds_of(grad.values if isinstance(grad, tf.IndexedSlices) else grad, replica)


def early_sums(grads: Sequence[Any], replica: Replica, *, are_weighed: bool) -> list[Any]:
    """Sums a tape's gradients of weights over the replicas, before the step gets the gradients.

    It is used for steps that change gradients, such as by clipping. It is a collective: all
    replicas must call it.

    Args:
        grads: This replica's gradients; items may be None.
        replica: The replica that is being traced.
        are_weighed: Whether the loss was already multiplied by the replica's share of the examples.

    Returns:
        The gradients of the global batch's loss.
    """
    weigh = replica.zero_if_empty if are_weighed else replica.weigh
    sums = iter(sum_gradients([weigh(grad) for grad in grads if grad is not None]))
    replica.tape_sums = True
    return [
        None if grad is None else replica.origins.agreed(with_gradient(next(sums), _refuse))
        for grad in grads
    ]


def _refuse(_: Tensor) -> NoReturn:
    raise ValueError(
        "`train_step` takes gradients of a loss that is computed from gradients of weights, and "
        "changes them (such as by clipping) before the optimizer gets them. On several replicas "
        "kfit cannot compute what they must be. Let the optimizer change them (`clipnorm`, "
        "`global_clipnorm`, `clipvalue`), or train on one replica."
    )
