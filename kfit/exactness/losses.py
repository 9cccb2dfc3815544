"""Wrappers that make losses, scalar metrics and random draws of the replicas add up to the batch's.

Each function here wraps a function of Keras (`kfit.exactness.patches` lists them) and calls it
unchanged unless this thread is tracing a replica's step.
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
"""Added to the seed for each replica. A prime, so that seeds of replicas and generators differ."""


def unscaled(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps Keras' scaling of a loss by 1 / replicas: no scaling, since the share replaces it."""

    def scale(value: Tensor) -> Tensor:
        return original(value) if current_replica() is None else value

    return scale


def global_estimate(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps the reduction of losses: returns the replica's estimate of the global batch's loss."""

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
            return loss  # the step decides how the examples' values are reduced
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
    """The estimate of the global batch's loss, from the loss that Keras reduced on the replica."""
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
    """The divisor of this replica's mean, or None if that is its number of examples.

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
    """Wraps `Mean.update_state`: a scalar is an estimate for the batch; its weight is the share."""

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = _one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if _is_scalar(values):
            values = _estimate_for(self, values, replica)
            values = replica.zero_if_empty(keras.ops.cast(values, self.dtype))
            sample_weight = replica.share_as(self.dtype) if sample_weight is None else sample_weight
        elif sample_weight is not None and _is_scalar(sample_weight):
            # Keras adds the mean of the values, with this one weight. The mean of no values would
            # be NaN.
            values = replica.zero_if_empty(keras.ops.mean(keras.ops.cast(values, self.dtype)))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def shared_sum(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `Sum.update_state`: a scalar is an estimate for the batch, multiplied by the share."""

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
    """Wraps `update_state` of Keras' other metrics, which all add sums over the examples."""

    def update_state(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = _one_of_several()
        if replica is None:
            return original(self, *args, **kwargs)
        with replica.adding_up():
            return original(self, *args, **kwargs)

    return update_state


def _estimate_for(metric: keras.Metric, value: Any, replica: Replica) -> Any:
    is_loss = metric.name == "loss"  # the loss that Keras logs
    what = "The loss of this model" if is_loss else f"What the metric {metric.name!r} is given"
    return estimate_of(value, replica, what)


def weighed_by(examples: Callable[[], Tensor | None]) -> Callable[..., Callable[..., None]]:
    """Makes a mean weight each value by the number of examples of the batch.

    Args:
        examples: Returns that number; None leaves the weight to the caller of `update_state`.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def update_state(values: Tensor, sample_weight: Tensor = None) -> None:
            count = examples()
            original(values, sample_weight if count is None else tf.cast(count, tf.float32))

        return update_state

    return wrap


def _one_of_several() -> Replica | None:
    """The replica that is being traced; None if every replica has all examples."""
    replica = current_replica()
    return None if replica is None or replica.has_all else replica


def _is_scalar(values: Tensor) -> bool:
    if isinstance(values, (list, tuple)):
        return False
    return bool(tf.TensorShape(getattr(values, "shape", ())).rank == 0)


def own_draws(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `SeedGenerator.next`: each replica gets its own seed from the state that all share."""

    def next_seed(self: Any, ordered: bool = True) -> Tensor:
        replica = _one_of_several()
        if replica is None:
            return original(self, ordered)
        replica.draws = True
        try:
            seed = original(self, ordered)
        finally:
            replica.draws = False
        replica.assigned.pop(id(self.state), None)  # the state changes equally on all replicas
        if not isinstance(replica.index, int):
            own = tf.cast(replica.index, seed.dtype) * tf.constant(_SEED_STRIDE, seed.dtype)
            return replica.origins.own(seed + tf.stack([own, tf.zeros_like(own)]))
        if replica.index:
            seed = seed + tf.constant([replica.index * _SEED_STRIDE, 0], seed.dtype)
        return replica.origins.own(seed)

    return next_seed


def shared_generator(original: Callable[[], Any]) -> Callable[[], Any]:
    """Wraps Keras' global seed generator: all replicas of a step use the generator of the step."""

    def global_seed_generator() -> keras.random.SeedGenerator:
        step = current_step()
        return original() if step is None else step.seed_generator

    return global_seed_generator


def noted_assign(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `Variable.assign`: records assigned variables, and corrects what a replica assigns.

    A replica without examples does not change its per-replica variables. Updates of metrics and
    rows of RNN states are converted (`as_on_one_device`, `written_back`).
    """

    def assign(self: keras.Variable, value: Tensor) -> Tensor:
        replica = current_replica()
        # An optimizer computes what it assigns from gradients that are summed over the replicas.
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
    """Wraps a method that changes a `tf.Variable`: refuses variables that kfit has not placed."""

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
    """The value as a tensor of the current graph; variables are read."""
    value = tf.convert_to_tensor(value)
    here = current_graph()
    is_here = tf.executing_eagerly() or getattr(value, "graph", None) is here
    return value if is_here else tf.identity(value)
