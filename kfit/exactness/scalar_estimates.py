"""Converts values of user code to estimates, so that the replicas' values add up to the batch's.

A value that describes a batch, such as a loss, must be the replica's estimate of the global
batch's value. The estimate is then weighted by the replica's share (its fraction of the examples).
A mean over the examples is an estimate as it is. A sum over the examples becomes an estimate when
it is divided by the share. For any other value no estimate is known, and kfit warns of it by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.distribute.contexts import replicas_meet_here
from kfit.exactness.across_examples import combines_examples
from kfit.exactness.batch_kinds import (
    Addend,
    addends_of,
    has_one_example,
    has_other_rows,
    has_rows_of_examples,
    kinds_of,
    power_of_number,
)
from kfit.exactness.changed_gradients import early_sums
from kfit.exactness.collectives import is_first_with_examples
from kfit.exactness.kinds import COUNT, INVERSE, NONE, Kinds
from kfit.exactness.origins import inputs_of
from kfit.exactness.replica_context import Replica, current_replica, current_step
from kfit.exactness.rows_axis import CALLS
from kfit.exactness.sources import made_from
from kfit.heartbeat.tracebacks import warn_user

Tensor = Any

_computing = threading.local()
"""Whether this thread is computing gradients, as `is_active`."""
_OF_TAPE = "The loss that this step takes gradients of"


def estimate_of(value: Any, replica: Replica, what: str) -> Any:
    """Converts a replica's value, such as a loss, to its estimate of the global batch's value.

    The sum of the replicas' estimates, weighted by the replicas' shares of the examples, is the
    global batch's value. The value may be a mean over the examples, a sum over them, their number,
    a value that is equal on all replicas, or a sum of such terms. If the graph shows anything else,
    kfit warns and returns the value unchanged. If there is no graph that shows what it is, it is
    taken for a mean.

    Args:
        value: A floating-point tensor without a row for each example, such as a scalar or a sum
            along the axis of the examples; anything else is returned unchanged.
        replica: The replica that is being traced.
        what: What to call the value in a warning, beginning with a capital letter.
    """
    if not _describes_batch(value, replica):
        return value
    warn_if_combined(value, replica, what)
    if _is_stack(value, replica):
        parts = [estimate_of(each, replica, what) for each in _stacked(value)]
        return replica.origins.estimate(tf.stack(parts))
    addends = addends_of(value, replica)
    if not replica.can_be_read:
        return value
    if all(each.kinds == {"mean"} for each in addends):
        return replica.origins.estimate(value)
    if not _are_known(addends):
        _warn_of(what)
        return replica.origins.estimate(value)  # so that kfit warns only once
    total = sum(each.times(_weight(each, replica)) for each in addends)
    return replica.origins.estimate(total)


def part_of(grad: Tensor, replica: Replica) -> Tensor | None:
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
    if len(kinds) == 1 and kinds <= _ADD_UP:
        return replica.zero_if_empty(grad)
    addends = addends_of(values, replica) if values is grad else []
    if not addends or not _are_known(addends):
        return None
    return replica.weigh(sum(each.times(_weight(each, replica)) for each in addends))


def common_value(value: Any, replica: Replica) -> Any:
    """Returns the global batch's value of what each replica can compute without the others.

    That is a value that is equal on all replicas, the number of examples, a constant divided by
    it, or a sum of such terms.

    Args:
        value: A number, or a floating-point tensor without a row for each example.
        replica: The replica that is being traced.

    Returns:
        The value; None if it is computed from the examples in any other way, or if there is no
        graph that shows what it is.
    """
    if not isinstance(value, tf.Tensor):
        return value
    addends = addends_of(value, replica)
    if not all(each.kinds in (NONE, COUNT, INVERSE) for each in addends):
        return None
    if not any(each.kinds for each in addends):
        return value
    one, share = tf.ones((), value.dtype), replica.share_as(value.dtype)
    number = {NONE: one, COUNT: by_share(one, replica), INVERSE: share}
    return replica.origins.agreed(sum(each.times(number[each.kinds]) for each in addends))


def of_tape(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `GradientTape.gradient`, for steps on several replicas.

    The replacement makes the gradients right if a user-written step computes its own loss:

    - If the loss is a sum over the examples, the gradients become those of the replica's estimate
      of the global batch's loss.
    - Gradients of tensors that the replica has computed from its examples are multiplied by the
      replica's share of the examples.
    - Gradients of weights are not multiplied here, since the optimizer does it later.

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
            with _computing_gradients():
                return original(self, targets, sources, output_gradients, *args, **kwargs)

        return _gradients(compute, target, sources, output_gradients)

    return gradient


def of_graph(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `tf.gradients`, which does what that of `of_tape` does."""

    def gradients(ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
        def compute(ys: Any, grad_ys: Any) -> Any:
            with _computing_gradients():
                return original(ys, xs, grad_ys, *args, **kwargs)

        return _gradients(compute, ys, tf.nest.flatten(xs), grad_ys)

    return gradients


@contextmanager
def _computing_gradients() -> Iterator[None]:
    """Context in which this thread computes gradients, so that they are not converted again."""
    before, _computing.is_active = _is_computing(), True
    try:
        yield
    finally:
        _computing.is_active = before


def _is_computing() -> bool:
    return getattr(_computing, "is_active", False)


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
    if replica is None or replica.has_all or tf.executing_eagerly() or _is_computing():
        return compute(target, output_gradients)
    for loss in losses:
        _warn_if_of_gradients(loss, replica)
    if any(id(loss) in replica.weighed for loss in losses):
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
        return compute(target, output_gradients)
    is_known = _are_known(addends)
    is_sum = is_known and all(each.kinds & _ADD_UP for each in addends)
    if not is_known and replica.can_be_read:
        _warn_of(_OF_TAPE)
    elif is_known and kinds & {*_ADD_UP, "inverse"} and not is_sum:
        target, output_gradients = _of_leaves(addends, replica)
    grads = compute(target, output_gradients)

    def of_batch(source: Any, grad: Any) -> Any:
        if grad is None or not is_known:
            return replica.origins.estimate(grad)  # so that kfit warns only once
        if isinstance(source, tf.Tensor) and kinds_of(source, replica):
            return grad if is_sum else _with_whole_rows(replica.weigh(grad), source, replica)
        changed = _each(grad, lambda g: by_share(g, replica)) if is_sum else grad
        return replica.origins.estimate(changed)

    grads = tf.nest.map_structure(of_batch, sources, grads, expand_composites=False)
    return _summed_early(sources, grads, replica, are_weighed=False)


def _with_whole_rows(grad: Tensor, source: Tensor, replica: Replica) -> Tensor:
    """Marks a weighted gradient as rows without the number of the replica's examples in them.

    The gradient of a mean has the number as a divisor, until it is weighted. So the sum of its rows
    is a sum over the examples. If the rows are not those of all examples, there is no mark.

    Args:
        grad: The gradient, multiplied by the replica's share of the examples.
        source: The tensor of which it is the gradient.
        replica: The replica that is being traced.
    """
    has_rows = has_rows_of_examples(source, replica)
    if (
        isinstance(grad, tf.Tensor)
        and has_rows
        and not has_other_rows(source, replica, by_value=True)
    ):
        replica.origins.own(grad)
    return grad


def _of_leaves(addends: Sequence[Addend], replica: Replica) -> tuple[list[Tensor], list[Tensor]]:
    """Differentiates the replica's estimate of a loss with respect to what its terms consist of.

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
        estimates = [each.times(_weight(each, replica)) for each in addends]
    with _computing_gradients():
        grads = tape.gradient(estimates, leaves)
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
    `kfit.exactness.kinds.Kind`) tells what the sum of the values is, since a tape takes the
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


_ADD_UP: frozenset[str] = frozenset({"sum", "rows", "count"})


def _are_known(addends: Sequence[Addend]) -> bool:
    """Returns whether the global batch's value can be computed from the replicas' terms.

    It can if each term is a mean or a sum over the examples, their number or its inverse, or equal
    on all replicas. It cannot if any term is a mixture of these kinds, or anything else, such as a
    maximum, or if the graph does not show what it is.
    """
    known = _ADD_UP | {"mean", "inverse"}
    return all(len(each.kinds) <= 1 and each.kinds <= known for each in addends)


def _weight(addend: Addend, replica: Replica) -> Any:
    """Returns the factor that makes a term an estimate of the global batch's term.

    It is 1 for a mean over the examples, and 1 / share for a sum, where the share is the replica's
    fraction of the examples. A constant divided by the number of examples counts on one replica.
    """
    if addend.kinds == INVERSE:
        return tf.cast(is_first_with_examples(replica), addend.tensor.dtype)
    if not addend.kinds & _ADD_UP:
        return 1.0
    return by_share(tf.ones((), addend.tensor.dtype), replica)


def by_share(value: Tensor, replica: Replica) -> Tensor:
    """Divides what adds up over the replicas by the replica's share, which makes it an estimate."""
    return tf.math.divide_no_nan(value, replica.share_as(value.dtype))


def of_replica_batch(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `tf.nn.compute_average_loss`, for steps on several replicas.

    If `global_batch_size` is None, the replacement divides the sum of the losses by the number of
    losses that it was given. TensorFlow would divide by this number times the number of replicas.
    In the cross-replica context, where kfit builds the model, TensorFlow would even raise an error.
    If `global_batch_size` is given, TensorFlow's function is called unchanged.
    """

    def compute_average_loss(
        per_example_loss: Tensor, sample_weight: Tensor = None, global_batch_size: Tensor = None
    ) -> Tensor:
        is_ours = current_replica() is not None or replicas_meet_here()
        if is_ours and global_batch_size is None:
            global_batch_size = tf.shape(per_example_loss)[0]
        return original(per_example_loss, sample_weight, global_batch_size)

    return compute_average_loss


def unscaled_sum(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `tf.nn.scale_regularization_loss`, for steps on several replicas.

    TensorFlow divides by the number of replicas. The replacement does not, since kfit weights the
    whole loss by the replica's share of the examples. In the cross-replica context, where kfit
    builds the model, TensorFlow would even raise an error.
    """

    def scale_regularization_loss(regularization_loss: Tensor) -> Tensor:
        if current_replica() is None and not replicas_meet_here():
            return original(regularization_loss)
        return tf.reduce_sum(regularization_loss)

    return scale_regularization_loss


def _each(grad: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(change(grad.values), grad.indices, grad.dense_shape)
    return None if grad is None else change(grad)


def _describes_batch(value: Any, replica: Replica) -> bool:
    """Returns whether a value is of the whole batch, and has no row for each example."""
    if not isinstance(value, tf.Tensor) or not value.dtype.is_floating:
        return False
    return not (has_rows_of_examples(value, replica) or has_one_example(value, replica))


def _is_stack(value: Tensor, replica: Replica) -> bool:
    """Returns whether a vector was put together of scalars, each of its own kind."""
    if tf.executing_eagerly() or not replica.origins.is_of_step(value):
        return False
    is_known = replica.origins.known_kind(value) is not None
    return value.shape.rank == 1 and _uncast(value).op.type == "Pack" and not is_known


def _stacked(value: Tensor) -> list[Tensor]:
    """Returns the scalars that a vector was put together of, in the dtype of the vector."""
    return [tf.cast(each, value.dtype) for each in _uncast(value).op.inputs]


def _uncast(value: Tensor) -> Tensor:
    """Returns what a value was cast from to its dtype; any other value as it is."""
    return value.op.inputs[0] if value.op.type == "Cast" else value


def _is_scalar(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0


def warn_if_combined(
    value: Tensor, replica: Replica, what: str, *, are_weighted: bool = False
) -> None:
    """Warns if a loss, or a part of it, combines a replica's examples with each other.

    For example, a contrastive loss compares each example with all others. A replica could compare
    only its own examples, so that the loss would depend on the number of replicas.

    Args:
        value: The loss, or its value for each example.
        replica: The replica that is being traced.
        what: What to call the value in the warning, beginning with a capital letter.
        are_weighted: Whether the values for each example will have weights.
    """
    if _are_used(value, replica.results.keys(), replica):
        warn_user(
            f"{what} is computed from the result of a metric. In a step each replica has that of "
            "its own examples only, so that the numbers depend on how many replicas there are. "
            "Let a callback pass the result to a variable of the model between the steps."
        )
    if combines_examples(value, replica, are_weighted=are_weighted):
        warn_user(
            f"{what} combines the examples of the batch with each other, as a contrastive loss "
            "does. Each replica combines its own examples only, so that the numbers depend on how "
            "many replicas there are. Take the examples of all replicas for this, by "
            "`tf.distribute.get_replica_context().all_gather(values, axis=0)`."
        )


def _are_used(value: Any, tensors: Collection[int], replica: Replica) -> bool:
    """Returns whether a value is computed from any of the tensors with the given ids."""
    if not tensors or not isinstance(value, tf.Tensor) or not replica.hides_rows:
        return False
    found = made_from(value, replica.origins, stop=CALLS)
    return any(id(each) in tensors for one in found for each in (one, *inputs_of(one)))


def _warn_if_of_gradients(loss: Any, replica: Replica) -> None:
    """Warns if a loss is computed from gradients of weights, as in second-order meta-learning.

    They are those of the replica's own examples, while one device has those of the whole batch.
    """
    if _are_used(loss, replica.gradients.keys(), replica):
        warn_user(
            f"{_OF_TAPE} is computed from gradients of weights, as in meta-learning. On several "
            "replicas they are the gradients of each replica's own examples, so that the numbers "
            "depend on how many replicas there are. Train on one replica."
        )


def warn_of_rows(
    values: Tensor,
    replica: Replica,
    what: str,
    *,
    are_averaged: bool = False,
    are_weighted: bool = False,
) -> None:
    """Warns if the value of an example depends on the replica's other examples or their number.

    It warns as well if there are rows beside those of the examples, or not all of them.

    Args:
        values: The values, with a row for each example.
        replica: The replica that is being traced.
        what: What to call the values in the warning, beginning with a capital letter.
        are_averaged: Whether Keras divides the sum of the values by their number, so that examples
            that a mask has left out make a difference.
        are_weighted: Whether the values will have weights, or a mask.
    """
    warn_if_combined(values, replica, what, are_weighted=are_weighted)
    if has_other_rows(values, replica, by_value=are_averaged):
        _warn_of(what)
    if power_of_number(values, replica) != 0:
        warn_user(
            f"{what} for each example depends on the number of examples in the batch. On several "
            "replicas this is the number of each replica's own examples, so that the numbers "
            "depend on how many replicas there are. Give Keras the values without the number: its "
            "losses and `keras.metrics.Mean` compute their mean."
        )


def _warn_of(what: str) -> None:
    warn_user(
        f"{what} is neither a mean nor a sum over the examples of the batch, as far as the graph "
        "shows (the root of a mean, a ratio of sums, a maximum, a mean over some of the examples). "
        "Each replica computes it from its own examples, so that the numbers depend on how many "
        "replicas there are. Let a loss return a value for each example, with `sample_weight` or a "
        "mask where some do not count, or take the sums in it over all replicas, by "
        '`tf.distribute.get_replica_context().all_reduce("sum", value)`.'
    )
