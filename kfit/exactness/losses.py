"""Losses, scalar metrics and random draws of one replica, so that together they are the batch's.

Each function here wraps one of Keras (`kfit.exactness.patches` lists them) and does what Keras
does unless a replica of ours is being traced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.collectives import all_reduce_sum
from kfit.exactness.metric_updates import as_on_one_device
from kfit.exactness.replica_context import (
    CannotMeetError,
    Replica,
    current_replica,
    current_step,
)
from kfit.exactness.row_states import written_back
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals.graphs import current_graph
from kfit.internals.losses import apply_mask
from kfit.internals.variables import is_copy_of_a_replica, tf_variable

Tensor = Any

_SEED_STRIDE = 1_000_003
"""A prime: the seeds of one generator's replicas and of its neighbours should not meet."""


def unscaled(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Keras scales by 1 / replicas and back; on a replica of ours the share does that."""

    def scale(value: Tensor) -> Tensor:
        return original(value) if current_replica() is None else value

    return scale


def global_estimate(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Reduces losses to the replica's estimate of the global batch's loss."""

    def reduce_weighted_values(
        values: Tensor,
        sample_weight: Tensor = None,
        mask: Tensor = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Tensor:
        loss = original(values, sample_weight, mask, reduction, dtype)
        replica = _one_of_several()
        if replica is None:
            return loss
        if _is_scalar(values):
            return estimate_of(loss, replica, "What a loss returns")
        if reduction in (None, "none"):
            return loss  # what becomes of the examples' own values is up to the step
        return replica.origins.estimate(
            _of_whole_batch(loss, replica, values, sample_weight, mask, reduction)
        )

    return reduce_weighted_values


def _of_whole_batch(
    loss: Tensor,
    replica: Replica,
    values: Tensor,
    sample_weight: Tensor,
    mask: Tensor,
    reduction: str,
) -> Tensor:
    """The estimate of the whole batch's loss, of a replica's loss that Keras has reduced."""
    share = replica.share_as(loss.dtype)
    if reduction == "sum":
        return tf.math.divide_no_nan(loss, share)
    divisor = _own_divisor(values, sample_weight, mask, reduction, loss.dtype)
    if divisor is None:
        return loss
    if replica.postponed is not None:
        raise CannotMeetError(
            "`jit_compile=True` on several replicas does not go with losses that are divided "
            "by more than the number of examples (masks, the reduction "
            "'mean_with_sample_weight', sequences of open length), because the replicas meet "
            "outside of XLA. Compile the model with `jit_compile=False`."
        )
    total = all_reduce_sum(divisor)
    return loss * tf.math.divide_no_nan(divisor, total * share)


def _own_divisor(
    values: Tensor, sample_weight: Tensor, mask: Tensor, reduction: str, dtype: Any
) -> Tensor | None:
    """What this replica's mean was divided by, or None when that is its number of examples.

    The cases are those of `keras.src.losses.loss.reduce_weighted_values`.
    """
    if reduction == "mean_with_sample_weight":
        weights = apply_mask(sample_weight, mask, dtype=dtype, reduction=reduction)
        if weights is not None:
            return tf.stop_gradient(tf.reduce_sum(tf.cast(weights, dtype)))
    elif mask is not None:
        return tf.reduce_sum(tf.cast(mask, dtype))
    if values.shape[1:].is_fully_defined():
        return None
    return tf.cast(tf.size(values), dtype)


def shared_mean(original: Callable[..., None]) -> Callable[..., None]:
    """A scalar stands for the whole batch: the replicas add it up by their shares."""

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = _one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if _is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.zero_if_empty(keras.ops.cast(values, self.dtype))
            sample_weight = replica.share_as(self.dtype) if sample_weight is None else sample_weight
        elif sample_weight is not None and _is_scalar(sample_weight):
            # One weight for all values counts their mean, and no value has none.
            values = replica.zero_if_empty(keras.ops.mean(keras.ops.cast(values, self.dtype)))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def shared_sum(original: Callable[..., None]) -> Callable[..., None]:
    """As `shared_mean`, for sums."""

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = _one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if _is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.weigh(keras.ops.cast(values, self.dtype))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def adding_up(original: Callable[..., None]) -> Callable[..., None]:
    """`update_state` of any other metric of Keras, all of which add sums over the examples."""

    def update_state(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = _one_of_several()
        if replica is None:
            return original(self, *args, **kwargs)
        with replica.adding_up():
            return original(self, *args, **kwargs)

    return update_state


def _estimate_for(metric: keras.Metric, value: Any, replica: Replica) -> Any:
    is_loss = metric.name == "loss"  # that which Keras logs
    what = "The loss of this model" if is_loss else f"What the metric {metric.name!r} is given"
    return estimate_of(value, replica, what)


def weighed_by(examples: Callable[[], Tensor | None]) -> Callable[..., Callable[..., None]]:
    """Makes each value that a mean is given count as often as the batch has examples.

    Args:
        examples: Their number; None leaves the weight to the caller.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def update_state(values: Tensor, sample_weight: Tensor = None) -> None:
            count = examples()
            original(values, sample_weight if count is None else tf.cast(count, tf.float32))

        return update_state

    return wrap


def _one_of_several() -> Replica | None:
    """The replica that is being traced, unless it has all examples and Keras is right there."""
    replica = current_replica()
    return None if replica is None or replica.has_all else replica


def _is_scalar(values: Tensor) -> bool:
    if isinstance(values, (list, tuple)):
        return False
    return bool(tf.TensorShape(getattr(values, "shape", ())).rank == 0)


def own_draws(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Different random numbers on each replica, from one state that all replicas share."""

    def next_seed(self: Any, ordered: bool = True) -> Tensor:
        replica = _one_of_several()
        if replica is None:
            return original(self, ordered)
        replica.draws = True
        try:
            seed = original(self, ordered)
        finally:
            replica.draws = False
        replica.assigned.pop(id(self.state), None)  # it goes on alike on all replicas
        if not isinstance(replica.index, int):
            own = tf.cast(replica.index, seed.dtype) * tf.constant(_SEED_STRIDE, seed.dtype)
            return replica.origins.own(seed + tf.stack([own, tf.zeros_like(own)]))
        if replica.index:
            seed = seed + tf.constant([replica.index * _SEED_STRIDE, 0], seed.dtype)
        return replica.origins.own(seed)

    return next_seed


def shared_generator(original: Callable[[], Any]) -> Callable[[], Any]:
    """What layers without a seed draw from: on all replicas the one of the step."""

    def global_seed_generator() -> keras.random.SeedGenerator:
        step = current_step()
        return original() if step is None else step.seed_generator

    return global_seed_generator


def noted_assign(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Notes what a replica assigns; what it adds up by itself waits for an example."""

    def assign(self: keras.Variable, value: Tensor) -> Tensor:
        replica = current_replica()
        # What an optimizer assigns follows from sums over the replicas.
        if replica is None or replica.reduced:
            return original(self, value)
        if id(self) in replica.own_metrics and self.aggregation == "sum" and not replica.adds_up:
            value = as_on_one_device(self, value, replica)
        if replica.may_be_empty and is_per_replica(self):
            value = replica.unless_empty(tf.cast(value, tf_variable(self).dtype), tf_variable(self))
        if id(self) in replica.row_states:
            value = written_back(replica, self, value)
        replica.assigned.setdefault(id(self), (self, []))[1].append(_here(value))
        return original(self, value)

    return assign


def only_of_keras(original: Callable[..., Any]) -> Callable[..., Any]:
    """A method of `tf.Variable` that changes it, which one that kfit has not placed must not be."""

    def change(self: tf.Variable, *args: Any, **kwargs: Any) -> Any:
        step, replica = current_step(), _one_of_several()
        if (
            step is not None
            and replica is not None
            and step.strategy.num_replicas > 1
            and not replica.draws
            and not is_copy_of_a_replica(self)
        ):
            raise ValueError(
                f"The tf.Variable {self.name!r} is changed in a step on several replicas: each "
                "of them would change it, or a copy that the others do not see. Make it a variable "
                'of its layer, `self.add_weight(..., trainable=False, aggregation="sum")`, or '
                "with another `aggregation`, which says what becomes of the replicas' values."
            )
        return original(self, *args, **kwargs)

    return change


def _here(value: Any) -> Any:
    """A value as a tensor of the graph that it is assigned in: a variable is read."""
    value = tf.convert_to_tensor(value)
    here = current_graph()
    is_here = tf.executing_eagerly() or getattr(value, "graph", None) is here
    return value if is_here else tf.identity(value)
