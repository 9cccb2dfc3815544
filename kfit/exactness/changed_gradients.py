"""Steps that change gradients in a way that does not go with a sum over the replicas.

A `train_step` that clips the gradients of its tape by hand clips those of one replica's examples,
and the sum of what is left is not what one device has. That it does so is known only when it hands
them to the optimizer. Such a step is traced again, now with a tape that gives the sums.
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
    """The step has to be traced again, with `GradientSums.early`."""


def check_changes(grads: Sequence[Any], replica: Replica) -> None:
    """Looks at the gradients that a step hands to an optimizer; warns of what cannot be exact.

    Args:
        grads: The gradients, none of them None.
        replica: The replica, being traced.

    Raises:
        ChangedGradientsError: If sums of the tape may make them exact.
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
    """Whether a gradient is the whole batch's already, made of early sums alone."""
    return replica.tape_sums and not _kinds_of(grad, replica)


def _kinds_of(grad: Any, replica: Replica) -> Kinds:
    return kinds_of(grad.values if isinstance(grad, tf.IndexedSlices) else grad, replica)


def early_sums(grads: Sequence[Any], replica: Replica, *, are_weighed: bool) -> list[Any]:
    """A tape's gradients of weights, summed over the replicas: those of the whole batch's loss.

    Args:
        grads: This replica's, with None where there is none.
        replica: The replica, being traced.
        are_weighed: Whether their loss was multiplied by the replica's share.
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
        "changes them (clips them, for one) before the optimizer has them: on several replicas "
        "nobody can tell what each of them would have to be. Let the optimizer change them "
        "(`clipnorm`, `global_clipnorm`, `clipvalue`), or train on one replica."
    )
