"""Converts a replica's gradients, so that the replicas' parts add up to those of the batch.

A step of the program may compute its loss, its gradients or both by itself. The loss shows how its
gradients depend on the replica's examples; a gradient that the step has computed shows it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import (
    Addend,
    addends_of,
    has_one_example,
    has_other_rows,
    has_rows_of_examples,
    kinds_of,
    power_of_number,
)
from kfit.exactness.batch_warnings import are_used, warn_if_combined, warn_of
from kfit.exactness.changed_gradients import early_sums
from kfit.exactness.replica_context import Replica, current_replica, current_step
from kfit.exactness.scalar_estimates import ADD_UP, are_known, weight_of
from kfit.graphs.kinds import Kinds
from kfit.heartbeat.tracebacks import warn_user

Tensor = Any


_OF_TAPE = "The loss that this step takes gradients of"


def part_of_gradient(grad: Tensor, replica: Replica) -> Tensor | None:
    """Returns the replica's part of a gradient; the parts add up to that of the global batch.

    A step may compute gradients by itself, or multiply those of a tape by the number of examples.
    A gradient that is a sum over the examples is a part already; a mean is weighted by the
    replica's share of the examples, and so is what is equal on all replicas. Of a sum of such
    terms, each is treated in its own way.

    Args:
        grad: A gradient that the step passes to an optimizer.
        replica: The replica that is being traced.

    Returns:
        The part; None if the gradient is none of these, such as a clipped one.
    """
    values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
    kinds = kinds_of(values, replica)
    if isinstance(grad, tf.IndexedSlices) and kinds == {"rows"}:
        kinds = _KINDS_OF_ROWS.get(power_of_number(values, replica), frozenset({"other"}))
    if kinds & {"unknown"} or kinds <= {"mean"} or (kinds == {"rows"} and values is grad):
        return replica.weigh(grad)
    if len(kinds) == 1 and kinds <= ADD_UP:
        return replica.zero_if_empty(grad)
    addends = addends_of(values, replica) if values is grad else []
    if not addends or not are_known(addends):
        return None
    return replica.weigh(sum(each.times(weight_of(each, replica)) for each in addends))


def of_tape(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `GradientTape.gradient`, for steps on several replicas.

    The replacement makes the gradients right if a user-written step computes its own loss:

    - The loss is multiplied so that the losses of all replicas add up to that of the global batch:
      a mean over the examples by the replica's share of the examples, a sum by nothing. So the
      gradient functions of operations (`tf.custom_gradient`) get what they get on one device,
      which matters if they are not linear, as where they clip.
    - Gradients of tensors that the replica has computed from its examples are returned so.
    - Gradients of weights are divided by the share, which makes them the replica's estimates of the
      global batch's gradients. The optimizer weights estimates by the share, and gets back what
      was divided (`Replica.weigh`).

    With `output_gradients` the loss is the sum of the products of the target and these gradients.
    If the target has rows of examples and the graph does not show what their sum is, it is taken
    for a sum over the examples: output gradients that the step has computed of a loss have the
    number of examples in them already.

    Where TensorFlow computes gradients, the gradient functions of operations may use tapes, such as
    those of `tf.recompute_grad`. They compute parts of the same gradients, and are left alone.
    """

    def gradient(
        self: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        def compute(targets: Any, output_gradients: Any) -> Any:
            return original(self, targets, sources, output_gradients, *args, **kwargs)

        return _gradients(compute, target, sources, output_gradients)

    return gradient


def of_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `tf.gradients`, which does what that of `of_tape` does."""

    def gradients(ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
        def compute(ys: Any, grad_ys: Any) -> Any:
            return original(ys, xs, grad_ys, *args, **kwargs)

        return _gradients(compute, ys, tf.nest.flatten(xs), grad_ys)

    return gradients


def _gradients(
    compute: Callable[[Any, Any], Any], target: Any, sources: Any, output_gradients: Any
) -> Any:
    """Returns the gradients of a replica's loss, converted as `of_tape` describes.

    Args:
        compute: A function of TensorFlow that computes the gradients of targets, given also their
            output gradients, or None.
        target: The loss, or several.
        sources: The tensors and variables to differentiate with respect to, in the structure of the
            result.
        output_gradients: The output gradients that the step has given; None if it has given none.
    """
    replica = current_replica()
    losses = tf.nest.flatten(target)
    if replica is None or replica.has_all or tf.executing_eagerly() or replica.differentiates:
        return compute(target, output_gradients)
    for loss in losses:
        _warn_if_of_gradients(loss, replica)
    if any(id(loss) in replica.weighed for loss in losses):
        with replica.differentiating(has_share=True):
            grads = compute(target, output_gradients)
        replica.origins.estimate(grads)
        return _summed_early(sources, grads, replica, are_weighed=True)
    for loss in losses:
        warn_if_combined(loss, replica, _OF_TAPE)
    given = len(losses) * [None] if output_gradients is None else tf.nest.flatten(output_gradients)
    addends = [
        each
        for loss, factor in zip(losses, given, strict=True)
        for each in _addends_of_loss(loss, replica, factor)
    ]
    kinds = {kind for each in addends for kind in each.kinds}
    if not kinds or any(has_one_example(loss, replica) for loss in losses):
        # Equal on all replicas, as derivatives at fixed points are; or those of each example.
        with replica.differentiating(has_share=False):
            return compute(target, output_gradients)
    is_known = are_known(addends)
    is_sum = is_known and all(each.kinds & ADD_UP for each in addends)
    if not is_known and replica.can_be_read:
        warn_of(_OF_TAPE, replica)
    if is_known and kinds & {*ADD_UP, "inverse"} and not is_sum:
        target, output_gradients = _of_leaves(addends, replica)
    elif not is_sum:
        target, output_gradients = losses, _times_share(losses, given, replica)
    with replica.differentiating(has_share=True):
        parts = compute(target, output_gradients)

    def of_batch(source: Any, part: Any) -> Any:
        if is_known and isinstance(source, tf.Tensor) and kinds_of(source, replica):
            return part if is_sum else _with_whole_rows(part, source, replica)
        return None if part is None else replica.estimate_of_part(part)

    grads = tf.nest.map_structure(of_batch, sources, parts, expand_composites=False)
    return _summed_early(sources, grads, replica, are_weighed=False)


def _times_share(losses: list[Tensor], given: list[Any], replica: Replica) -> list[Tensor]:
    """Returns the output gradients of losses, multiplied by the replica's share of the examples."""
    return [
        replica.share_as(loss.dtype) * (tf.ones_like(loss) if each is None else each)
        for loss, each in zip(losses, given, strict=True)
    ]


def _warn_if_of_gradients(loss: Any, replica: Replica) -> None:
    """Warns if a loss is computed from gradients of weights, as in second-order meta-learning.

    They are those of the replica's own examples, while one device has those of the whole batch.
    """
    if are_used(loss, replica.gradients.keys(), replica):
        warn_user(
            f"{_OF_TAPE} is computed from gradients of weights, as in meta-learning. On several "
            "replicas they are the gradients of each replica's own examples, so that the numbers "
            "depend on how many replicas there are. Train on one replica."
        )


def _with_whole_rows(grad: Tensor, source: Tensor, replica: Replica) -> Tensor:
    """Marks a weighted gradient as rows without the number of the replica's examples in them.

    The gradient of a mean has the number as a divisor, until it is weighted. So the sum of its rows
    is a sum over the examples. If the rows are not those of all examples, there is no mark. On a
    replica without examples the gradient is zeros.

    Args:
        grad: The gradient, multiplied by the replica's share of the examples.
        source: The tensor of which it is the gradient.
        replica: The replica that is being traced.
    """
    grad = None if grad is None else replica.zero_if_empty(grad)
    has_rows = has_rows_of_examples(source, replica)
    if (
        isinstance(grad, tf.Tensor)
        and has_rows
        and not has_other_rows(source, replica, by_value=True)
    ):
        replica.origins.own(grad)
    return grad


def _of_leaves(addends: Sequence[Addend], replica: Replica) -> tuple[list[Tensor], list[Tensor]]:
    """Differentiates the replica's part of a loss with respect to what its terms consist of.

    The parts of all replicas add up to the loss of the global batch.

    Args:
        addends: The terms of the loss.
        replica: The replica that is being traced.

    Returns:
        The tensors of the graph that the terms are products of, factors as well, and the gradient
        of each. A tape that gets them as targets and output gradients goes on from there.
    """
    leaves = list({id(leaf): leaf for each in addends for leaf in each.leaves}.values())
    with tf.GradientTape() as tape:
        tape.watch(leaves)
        parts = [replica.weigh(each.times(weight_of(each, replica))) for each in addends]
    with replica.differentiating(has_share=True):
        grads = tape.gradient(parts, leaves)
    known = [(leaf, grad) for leaf, grad in zip(leaves, grads, strict=True) if grad is not None]
    return [leaf for leaf, _ in known], [grad for _, grad in known]


def _summed_early(sources: Any, grads: Any, replica: Replica, *, are_weighed: bool) -> Any:
    """Sums the gradients of weights over the replicas, if the step needs early sums.

    A step needs them if it changes gradients, such as by clipping, before the optimizer gets them
    (`GradientSums.early`). Otherwise the gradients are returned unchanged.

    Args:
        sources: The sources that were passed to the tape's `gradient`.
        grads: The gradients of the sources.
        replica: The replica that is being traced.
        are_weighed: Whether the loss was already multiplied by the replica's share of the examples.
    """
    flat = tf.nest.flatten(grads)
    of_weights = [
        index
        for index, source in enumerate(tf.nest.flatten(sources))
        if not isinstance(source, tf.Tensor) or not kinds_of(source, replica)
    ]
    step = current_step()
    assert step is not None
    if step.gradient_sums is None or not step.gradient_sums.early:
        replica.gradients.update({id(flat[index]): flat[index] for index in of_weights})
        return grads
    sums = early_sums([flat[index] for index in of_weights], replica, are_weighed=are_weighed)
    for index, total in zip(of_weights, sums, strict=True):
        flat[index] = total
    return tf.nest.pack_sequence_as(grads, flat)


def _addends_of_loss(loss: Any, replica: Replica, factor: Any = None) -> list[Addend]:
    """Splits a loss into the terms that are added up in it, as far as the graph shows them.

    Only a scalar is split. A loss with a value for each example is one term. Its kind (see
    `kfit.graphs.kinds.Kind`) tells what the sum of the values is, since a tape takes the
    gradient of this sum: "mean" if the values are divided by the number of examples; "rows", which
    is treated like "sum", if they do not depend on this number; otherwise "other".

    Args:
        loss: The loss.
        replica: The replica that is being traced.
        factor: The output gradient of the loss; None if there is none.
    """
    if factor is not None:
        return _with_factor(loss, factor, replica)
    if _is_scalar(loss):
        return addends_of(loss, replica)
    kinds = kinds_of(loss, replica)
    if kinds == {"rows"}:
        kinds = _KINDS_OF_ROWS.get(power_of_number(loss, replica), frozenset({"other"}))
    return [Addend(loss, 1.0, kinds)]


def _with_factor(loss: Any, factor: Any, replica: Replica) -> list[Addend]:
    """Splits the product of a loss and its output gradient like a loss.

    If the output gradient of a scalar loss may differ between replicas, the product is one term.
    """
    factor = tf.cast(factor, loss.dtype)
    if _is_scalar(loss):
        if kinds_of(factor, replica):
            return [Addend(loss, factor, kinds_of(loss * factor, replica))]
        return [each._replace(factor=each.factor * factor) for each in addends_of(loss, replica)]
    kinds = kinds_of(tf.reduce_sum(loss * factor), replica)
    is_readable = kinds <= {"mean", "sum"} and len(kinds) <= 1
    return [Addend(loss, factor, kinds if is_readable else frozenset({"sum"}))]


_KINDS_OF_ROWS: dict[int | None, Kinds] = {0: frozenset({"rows"}), -1: frozenset({"mean"})}
"""What the elements of a loss add up to, by the power of their number in them."""


def _is_scalar(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0
