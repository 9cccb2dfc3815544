"""Sums the replicas' gradients, so that the sums are the gradients of the global batch's loss."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from kfit.exactness.changed_gradients import is_changed, is_whole, report_changes
from kfit.exactness.collectives import largest, sum_gradients
from kfit.exactness.replica_context import Replica, current_step
from kfit.exactness.tape_gradients import part_of_gradient
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.optimizers import is_overwritten

Tensor = Any
Optimizer: TypeAlias = keras.optimizers.Optimizer


@contextmanager
def reduced(
    optimizer: Optimizer,
    grads: Sequence[Tensor],
    variables: Sequence[Any],
    replica: Replica,
    *,
    waits: bool = False,
) -> Iterator[Any]:
    """Context for the update of an optimizer, with gradients that are summed over the replicas.

    All replicas must enter it, since the sum is a collective. If an optimizer calls the `apply` of
    another optimizer within the context, the gradients are not summed again.

    Args:
        optimizer: The optimizer.
        grads: This replica's gradients; items may be None.
        variables: The variables of the gradients.
        replica: The replica that is being traced.
        waits: Whether dense gradients are summed only in the last step of a window of
            `gradient_accumulation_steps` steps.

    Yields:
        The gradients of the global batch's loss. With `waits` the dense ones are this replica's own
        instead, weighted by its share of the examples.

    Raises:
        ChangedGradientsError: If the step has changed the gradients, such as by clipping, and must
            be traced again with early sums.
        ValueError: If the loss has a value for each example, and the step has not called
            `scale_loss`.
    """
    if replica.reduced:
        yield list(grads)
        return
    values = _values_of_all(optimizer, grads, variables)
    weighed = [None if i in values else grad for i, grad in enumerate(grads)]
    present, where = without_none(weighed)
    _warn_of_dense_rows(optimizer, present)
    late = [waits and is_dense(grad) for grad in present]
    sums = _sums(present, _of_share(present, replica), late, replica)
    replica.reduced = True
    try:
        yield [values.get(i, grad) for i, grad in enumerate(with_none(sums, where))]
    finally:
        replica.reduced = False


def _sums(
    grads: list[Tensor], parts: list[Tensor], late: list[bool], replica: Replica
) -> list[Tensor]:
    """Sums the gradients over the replicas, except those to be summed later or summed already.

    Args:
        grads: The replica's gradients.
        parts: The same gradients, weighted by the replica's share of the examples.
        late: For each gradient, whether it is summed in a later step. The result then has the item
            of `parts` instead of a sum.
        replica: The replica that is being traced.
    """
    whole = [is_whole(grad, replica) for grad in grads]
    due = [
        part
        for part, is_late, has_all in zip(parts, late, whole, strict=True)
        if not is_late and not has_all
    ]
    summed = iter(sum_gradients(due) if due else [])
    return [
        part if is_late else grad if has_all else next(summed)
        for grad, part, is_late, has_all in zip(grads, parts, late, whole, strict=True)
    ]


def _values_of_all(
    optimizer: Optimizer, grads: Sequence[Tensor], variables: Sequence[Any]
) -> dict[int, Tensor]:
    """Returns the new values of the variables that Keras overwrites with their "gradients".

    Keras has such variables only in float8 training: the largest absolute values seen, and scales
    computed from these values. A user's layer may make others (`overwrite_with_gradient=True`). For
    the global batch, each new value is the maximum over the replicas. So the function is a
    collective, unless there are no such variables.

    Returns:
        The new values, by the index of the variable in `variables`. Variables whose gradient is
        None are left out.
    """
    own = {
        i: grad
        for i, (grad, variable) in enumerate(zip(grads, variables, strict=True))
        if grad is not None and is_overwritten(optimizer, variable)
    }
    return dict(zip(own, largest(list(own.values())), strict=True)) if own else {}


def _warn_of_dense_rows(optimizer: Optimizer, present: Sequence[Tensor]) -> None:
    """Warns if a sparse gradient is made dense before it is summed, and this changes the update.

    Gradients of embeddings are made dense on a TPU, and where TensorFlow's collectives need the
    same number of rows in each step. Most optimizers treat the rows of a sparse gradient one by
    one, for example square them, before they add up the rows of the same index.

    Args:
        optimizer: The optimizer that gets the gradients.
        present: The gradients, none of them None.
    """
    step = current_step()
    assert step is not None
    strategy = step.strategy
    dense = [g for g in present if isinstance(g, tf.IndexedSlices) and not strategy.keeps_rows(g)]
    if strategy.num_replicas == 1 or not dense or _adds_up_rows_first(optimizer):
        return
    reason, way_out = (
        ("a TPU sums no other", "")
        if strategy.static_shapes
        else (
            "its number of rows is another in each step, and TensorFlow's collectives between "
            "these replicas take one shape",
            ", or examples of one length",
        )
    )
    warn_user(
        f"The gradient of an embedding is summed as a dense one here, since {reason}. On one "
        f"device Keras' {type(optimizer).__name__} squares and clips the rows of a batch before "
        "those of one word are added up, so that the numbers differ where a batch has a word more "
        "than once. Take `gradient_accumulation_steps`, or keras.optimizers.SGD without "
        f"clipping{way_out}."
    )


def _adds_up_rows_first(optimizer: Optimizer) -> bool:
    """Returns whether a sparse gradient and the equal dense one give the same update.

    That is so if the optimizer sums the rows of each index before any nonlinear operation, or if
    the update is linear.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    clips = inner.clipnorm or inner.clipvalue or inner.global_clipnorm
    is_linear = type(inner) is keras.optimizers.SGD and not clips
    return bool(inner.gradient_accumulation_steps or is_linear)


def _of_share(present: list[Tensor], replica: Replica) -> list[Tensor]:
    """Weights a replica's gradients, so that their sum over the replicas is the global gradient.

    The weight is the replica's share of the examples, except of sums over the examples. Gradients
    of a loss that `scale_loss` has already multiplied by the share get no further weight.

    Args:
        present: The gradients, none of them None.
        replica: The replica that is being traced.

    Raises:
        ChangedGradientsError: If the step has changed the gradients, such as by clipping, and must
            be traced again with early sums.
        ValueError: If the loss has a value for each example, and the step has not called
            `scale_loss`.
    """
    if replica.scaled and not replica.tape_sums:
        if not replica.has_all and any(is_changed(grad, replica) for grad in present):
            report_changes(replica)
        return [replica.zero_if_empty(grad) for grad in present]
    if replica.unreduced and not replica.tape_sums:
        raise ValueError(
            "`train_step` takes gradients of a loss with a value for each example "
            "(`reduction=None`). On several replicas it is ambiguous whether their sum or their "
            "mean is meant. Take the gradients of `self.optimizer.scale_loss(loss)`, as Keras' own "
            "step does, or compile the model with a reduction."
        )
    # Early sums are equal on all replicas; weighted by the shares they add up to themselves.
    if replica.has_all:
        return [replica.weigh(grad) for grad in present]
    parts = [part_of_gradient(grad, replica) for grad in present]
    if any(part is None for part in parts):
        report_changes(replica)
    return [
        replica.weigh(grad) if part is None else part
        for grad, part in zip(present, parts, strict=True)
    ]


def is_dense(grad: Tensor) -> bool:
    """Returns whether a gradient is dense.

    Only dense gradients are accumulated on each replica, since accumulating a sparse gradient would
    make it dense.
    """
    return not isinstance(grad, tf.IndexedSlices)


def without_none(grads: Sequence[Tensor]) -> tuple[list[Tensor], list[bool]]:
    """Leaves out the gradients that are None; `with_none` puts them back.

    Returns:
        The gradients that are not None, and for each item of `grads` whether it is not None.
    """
    return [g for g in grads if g is not None], [g is not None for g in grads]


def with_none(present: Sequence[Tensor], where: list[bool]) -> list[Tensor]:
    """Puts None back where `without_none` has left it out.

    Args:
        present: The gradients that are not None.
        where: For each item of the result, whether it is one of `present`; else it is None.
    """
    rest = iter(present)
    return [next(rest) if here else None for here in where]
