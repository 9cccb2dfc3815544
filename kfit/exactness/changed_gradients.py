"""Steps that change gradients before the optimizer gets them, such as by clipping them.

A `train_step` that clips a tape's gradients by itself clips those of one replica's examples, and
the sum of the clipped gradients differs from one device's. That can be detected only when the step
passes them to the optimizer. Such a step is then traced a second time, with a tape that returns
gradients summed over the replicas ("early sums").
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

import tensorflow as tf

from kfit.exactness.batch_kinds import Kinds, kinds_of
from kfit.exactness.collectives import sum_gradients, with_gradient
from kfit.exactness.replica_context import Replica, current_step

Tensor = Any


class ChangedGradientsError(Exception):
    """The step must be traced again with `GradientSums.early` set."""


def check_changes(grads: Sequence[Any], replica: Replica) -> None:
    """Checks the gradients that a step passes to an optimizer; warns if they cannot be exact.

    Args:
        grads: The gradients, none of them None.
        replica: The replica that is being traced.

    Raises:
        ChangedGradientsError: If they may be exact with early sums, which were not tried yet.
    """
    if not any("other" in _kinds_of(grad, replica) for grad in grads):
        return
    step = current_step()
    assert step is not None
    if step.gradient_sums is not None and not step.gradient_sums.early:
        raise ChangedGradientsError
    when = "by numbers that differ between replicas, such as random ones"
    if not replica.tape_sums:
        when = "before they are summed over the replicas"
    warnings.warn(
        f"`train_step` changes gradients {when}, so that the numbers depend on how many replicas "
        "there are. Let the optimizer change them, which it does after the sum: by `clipnorm`, "
        "`global_clipnorm` or `clipvalue`, or in an `apply` of your own.",
        stacklevel=2,
    )


def is_whole(grad: Any, replica: Replica) -> bool:
    """Whether a gradient is computed from early sums only, so that it needs no further sum."""
    return replica.tape_sums and not _kinds_of(grad, replica)


def _kinds_of(grad: Any, replica: Replica) -> Kinds:
    return kinds_of(grad.values if isinstance(grad, tf.IndexedSlices) else grad, replica)


def early_sums(grads: Sequence[Any], replica: Replica, *, are_weighed: bool) -> list[Any]:
    """Sums a tape's gradients of weights over the replicas: the gradients of the global loss.

    Args:
        grads: This replica's gradients; items may be None.
        replica: The replica that is being traced.
        are_weighed: Whether the loss was multiplied by the replica's share already.
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
