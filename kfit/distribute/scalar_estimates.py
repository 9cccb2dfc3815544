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

from kfit.distribute.batch_kinds import Kinds, kinds_of
from kfit.distribute.replicas import Replica, current_replica

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
    kinds = kinds_of(value, replica)
    if kinds == {"sum"}:
        share = replica.share_as(value.dtype)
        return replica.origins.estimate(tf.math.divide_no_nan(value, share))
    _warn_of(kinds, what)
    return replica.origins.estimate(value) if kinds - {"unknown"} else value  # warned of once


def of_gradients(original: Callable[..., Any]) -> Callable[..., Any]:
    """`GradientTape.gradient`, of a loss that a step of the user's has computed by itself.

    The gradient of the batch's mean for one of its examples is the share times that of the
    replica's mean. For weights the optimizer sees to that, or `scale_loss` has done so before.
    """

    def gradient(
        self: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
    ) -> Any:
        grads = original(self, target, sources, *args, **kwargs)
        replica = current_replica()
        if replica is None or replica.has_all:
            return grads
        if not _is_scalar(target):
            return replica.origins.estimate(grads)
        weighed = id(target) in replica.weighed
        kinds = kinds_of(target, replica)
        if not weighed:  # else it was looked at before
            _warn_of(kinds, "The loss that this step takes gradients of")
        is_sum, is_mean = kinds == {"sum"} and not weighed, kinds == {"mean"} and not weighed

        def of_batch(source: Any, grad: Any) -> Any:
            of_examples = isinstance(source, tf.Tensor) and bool(kinds_of(source, replica))
            if of_examples:
                return _each(grad, replica.weigh) if is_mean else grad
            return (
                _each(grad, lambda g: tf.math.divide_no_nan(g, replica.share_as(g.dtype)))
                if is_sum
                else grad
            )

        grads = tf.nest.map_structure(of_batch, sources, grads, expand_composites=False)
        for source, grad in zip(tf.nest.flatten(sources), tf.nest.flatten(grads), strict=True):
            if not isinstance(source, tf.Tensor):
                replica.origins.estimate(grad)
        return grads

    return gradient


def warn_of_changed(grads: Sequence[Any], replica: Replica) -> None:
    """Warns where a step changes gradients so that their sum over the replicas is another one."""
    values = [grad.values if isinstance(grad, tf.IndexedSlices) else grad for grad in grads]
    if any("other" in kinds_of(value, replica) for value in values):
        warnings.warn(
            "`train_step` changes gradients before they are summed over the replicas, so that the "
            "numbers depend on how many there are. Let the optimizer clip them (`clipnorm`, "
            "`global_clipnorm`, `clipvalue`), which it does after the sum.",
            stacklevel=2,
        )


def of_replica_batch(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`tf.nn.compute_average_loss`: the mean over this replica's examples, if no size is given.

    TensorFlow divides by the number of replicas as well, for a loop that adds up their losses; and
    it refuses where a model is built, which is outside of the replicas.
    """

    def compute_average_loss(
        per_example_loss: Tensor, sample_weight: Tensor = None, global_batch_size: Tensor = None
    ) -> Tensor:
        is_ours = current_replica() is not None or tf.distribute.in_cross_replica_context()
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


def _warn_of(kinds: Kinds, what: str) -> None:
    if kinds != {"sum"} and kinds - {"mean", "unknown"}:
        warnings.warn(
            f"{what} is neither a mean nor a sum over the examples of the batch, as far as the "
            "graph shows (the root of a mean, a ratio of sums, a maximum, a sum and a mean in "
            "one). Each replica computes it from its own examples, so that the numbers depend on "
            "how many replicas there are. Let a loss return a value for each example, with "
            "`sample_weight` or a mask where some do not count, or take the sums in it over all "
            'replicas, by `tf.distribute.get_replica_context().all_reduce("sum", value)`.',
            stacklevel=2,
        )
