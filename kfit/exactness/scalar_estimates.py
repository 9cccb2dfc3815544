"""Converts scalars of user code to estimates, so that the replicas' values add up to the batch's.

A scalar that describes a batch, such as a loss, must be the replica's estimate of the global
batch's value; it is then weighted by the replica's share. A mean over the examples is an estimate
as it is. A sum over the examples becomes one by dividing it by the share. For any other scalar no
estimate is known; kfit warns of it by name.
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
    """Converts a replica's scalar to its estimate of the global batch's value.

    Args:
        value: A floating-point scalar tensor; anything else is returned unchanged.
        replica: The replica that is being traced.
        what: What to call the value in a warning, beginning with a capital letter.
    """
    if not _is_scalar(value):
        return value
    addends = addends_of(value, replica)
    if all(each.kinds <= {"mean", "unknown"} for each in addends):
        return replica.origins.estimate(value) if addends[0].kinds != {"unknown"} else value
    if not _are_known(addends):
        _warn_of(what)
        return replica.origins.estimate(value)  # so that kfit warns only once
    total = sum(each.times(_weight(each, replica)) for each in addends)
    return replica.origins.estimate(total)


def of_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `GradientTape.gradient` for losses that a user's step has computed by itself.

    Gradients of weights are those of the replica's estimate; they are weighted by the share later,
    by the optimizer, or were weighted by `scale_loss`. Gradients of tensors that the replica
    computed from its examples are those of the global batch's loss: the estimate's times the share.
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
                return replica.origins.estimate(grad)  # so that kfit warns only once
            if isinstance(source, tf.Tensor) and kinds_of(source, replica):
                return grad if is_sum else replica.weigh(grad)
            changed = _each(grad, lambda g: _by_share(g, replica)) if is_sum else grad
            return replica.origins.estimate(changed)

        grads = tf.nest.map_structure(of_batch, sources, grads, expand_composites=False)
        return _of_tape(sources, grads, replica, are_weighed=False)

    return gradient


def _of_tape(sources: Any, grads: Any, replica: Replica, *, are_weighed: bool) -> Any:
    """Replaces gradients of weights by their sums over the replicas, if early sums are on."""
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
    """The terms of a loss; TensorFlow sums the elements of a loss that is not a scalar."""
    if _is_scalar(loss):
        return addends_of(loss, replica)
    return [Addend(loss, 1.0, kinds_of(loss, replica))]


_ADD_UP: frozenset[str] = frozenset({"sum", "rows", "count"})


def _are_known(addends: Sequence[Addend]) -> bool:
    """Whether each term is of one kind from which the global batch's value can be computed."""
    known = _ADD_UP | {"mean", "unknown"}
    return all(len(each.kinds) <= 1 and each.kinds <= known for each in addends)


def _weight(addend: Addend, replica: Replica) -> Any:
    """The factor that makes a term an estimate."""
    if not addend.kinds & _ADD_UP:
        return 1.0
    return _by_share(tf.ones((), addend.tensor.dtype), replica)


def _by_share(value: Tensor, replica: Replica) -> Tensor:
    return tf.math.divide_no_nan(value, replica.share_as(value.dtype))


def of_replica_batch(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `tf.nn.compute_average_loss`: by default the mean over the replica's own examples.

    TensorFlow also divides by the number of replicas, for training loops that sum the replicas'
    losses. And it raises in the cross-replica context, where kfit builds the model.
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
    """Wraps `tf.nn.scale_regularization_loss`: no division by the number of replicas."""

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
