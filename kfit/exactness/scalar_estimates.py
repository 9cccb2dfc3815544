"""Scalars of the user's own code, so that the replicas' come together to the whole batch's.

A replica's loss, and whatever else stands for a batch, is its estimate of the whole batch's, which
is weighed by its share of the examples. A mean over the examples is one as it is; a sum is one when
it is divided by the share. Of anything else no estimate is known: that is warned of, by name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kfit.distribute.contexts import replicas_meet_here
from kfit.exactness.batch_kinds import Addend, addends_of, kinds_of
from kfit.exactness.changed_gradients import early_sums
from kfit.exactness.replica_context import Replica, current_replica, current_step

Tensor = Any


def estimate_of(value: Any, replica: Replica, what: str) -> Any:
    """The estimate of the whole batch's value that a replica's own scalar is.

    Args:
        value: A floating tensor without dimensions; anything else is returned as it is.
        replica: The replica, being traced.
        what: What the value is called in a warning, with a capital letter.
    """
    if not _is_scalar(value):
        return value
    addends = addends_of(value, replica)
    if all(each.kinds <= {"mean", "unknown"} for each in addends):
        return replica.origins.estimate(value) if addends[0].kinds != {"unknown"} else value
    if not _are_known(addends):
        _warn_of(what)
        return replica.origins.estimate(value)  # warned of once
    total = sum(each.times(_weight(each, replica)) for each in addends)
    return replica.origins.estimate(total)


def of_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """`GradientTape.gradient`, of a loss that a step of the user's has computed by itself.

    For weights it is that of the replica's estimate, which the optimizer weighs by its share, or
    `scale_loss` has weighed before. For what the replica computes from its examples it is that of
    the whole batch's loss: the share times the estimate's.
    """

    def gradient(
        self: tf.GradientTape,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        replica = current_replica()
        losses = tf.nest.flatten(target)
        if replica is None or replica.has_all or tf.executing_eagerly():
            return original(self, target, sources, output_gradients, *args, **kwargs)
        is_weighed = any(id(loss) in replica.weighed for loss in losses)
        if is_weighed or output_gradients is not None:
            grads = original(self, target, sources, output_gradients, *args, **kwargs)
            replica.origins.estimate(grads)
            return _of_tape(sources, grads, replica, are_weighed=is_weighed)
        addends = [each for loss in losses for each in _addends_of_loss(loss, replica)]
        kinds = {kind for each in addends for kind in each.kinds}
        is_known = _are_known(addends) and "unknown" not in kinds
        is_sum = is_known and all(each.kinds & _ADD_UP for each in addends)
        if not _are_known(addends):
            _warn_of("The loss that this step takes gradients of")
        elif kinds & _ADD_UP and not is_sum:
            target = [each.tensor for each in addends]
            output_gradients = [each.weights(_weight(each, replica)) for each in addends]
        grads = original(self, target, sources, output_gradients, *args, **kwargs)

        def of_batch(source: Any, grad: Any) -> Any:
            if grad is None or not is_known:
                return replica.origins.estimate(grad)  # warned of once
            if isinstance(source, tf.Tensor) and kinds_of(source, replica):
                return grad if is_sum else replica.weigh(grad)
            changed = _each(grad, lambda g: _by_share(g, replica)) if is_sum else grad
            return replica.origins.estimate(changed)

        grads = tf.nest.map_structure(of_batch, sources, grads, expand_composites=False)
        return _of_tape(sources, grads, replica, are_weighed=False)

    return gradient


def _of_tape(sources: Any, grads: Any, replica: Replica, *, are_weighed: bool) -> Any:
    """The gradients that a step is given: this replica's, or the sums where it changes them."""
    step = current_step()
    assert step is not None
    if step.gradient_sums is None or not step.gradient_sums.early:
        return grads
    flat = tf.nest.flatten(grads)
    of_weights = [
        index
        for index, source in enumerate(tf.nest.flatten(sources))
        if not isinstance(source, tf.Tensor) or not kinds_of(source, replica)
    ]
    sums = early_sums([flat[index] for index in of_weights], replica, are_weighed=are_weighed)
    for index, total in zip(of_weights, sums, strict=True):
        flat[index] = total
    return tf.nest.pack_sequence_as(grads, flat)


def _addends_of_loss(loss: Any, replica: Replica) -> list[Addend]:
    """What a loss is the sum of; TensorFlow adds up the elements of one that is no scalar."""
    if _is_scalar(loss):
        return addends_of(loss, replica)
    return [Addend(loss, 1.0, kinds_of(loss, replica))]


_ADD_UP: frozenset[str] = frozenset({"sum", "rows", "count"})


def _are_known(addends: Sequence[Addend]) -> bool:
    """Whether each addend is of one kind that can be put together from the replicas'."""
    known = _ADD_UP | {"mean", "unknown"}
    return all(len(each.kinds) <= 1 and each.kinds <= known for each in addends)


def _weight(addend: Addend, replica: Replica) -> Any:
    """What makes an estimate of an addend."""
    if not addend.kinds & _ADD_UP:
        return 1.0
    return _by_share(tf.ones((), addend.tensor.dtype), replica)


def _by_share(value: Tensor, replica: Replica) -> Tensor:
    return tf.math.divide_no_nan(value, replica.share_as(value.dtype))


def of_replica_batch(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`tf.nn.compute_average_loss`: the mean over this replica's examples, if no size is given.

    TensorFlow divides by the number of replicas as well, for a loop that adds up their losses; and
    it refuses where a model is built, which is outside of the replicas.
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
    """`tf.nn.scale_regularization_loss`: TensorFlow divides by the number of replicas."""

    def scale_regularization_loss(regularization_loss: Tensor) -> Tensor:
        if current_replica() is None:
            return original(regularization_loss)
        return tf.reduce_sum(regularization_loss)

    return scale_regularization_loss


def _each(grad: Any, change: Callable[[Tensor], Tensor]) -> Any:
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(change(grad.values), grad.indices, grad.dense_shape)
    return None if grad is None else change(grad)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, tf.Tensor) and value.dtype.is_floating and value.shape.rank == 0


def _warn_of(what: str) -> None:
    warnings.warn(
        f"{what} is neither a mean nor a sum over the examples of the batch, as far as the graph "
        "shows (the root of a mean, a ratio of sums, a maximum, a mean over some of the examples). "
        "Each replica computes it from its own examples, so that the numbers depend on how many "
        "replicas there are. Let a loss return a value for each example, with `sample_weight` or a "
        "mask where some do not count, or take the sums in it over all replicas, by "
        '`tf.distribute.get_replica_context().all_reduce("sum", value)`.',
        stacklevel=3,
    )
