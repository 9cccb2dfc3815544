"""Wrappers of `update_state`, so that metrics on several replicas have the values of one device.

Each replica has its own copy of a metric's variables, and the metric's value is computed from the
sums of the copies. The wrappers make these sums equal to the variables on one device. Each wrapper
changes only what a replica's step does. Anywhere else it calls Keras' method unchanged.
`kfit.exactness.patches` lists the methods.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.batch_kinds import has_rows_elsewhere, has_rows_of_examples, kinds_of
from kfit.exactness.batch_losses import COMPARES, OVER_BATCHES, axes_of
from kfit.exactness.batch_warnings import warn_of_rows
from kfit.exactness.replica_context import Replica, current_replica, one_of_several
from kfit.exactness.rows import is_scalar
from kfit.exactness.scalar_estimates import common_value, estimate_of
from kfit.graphs.kinds import COUNT
from kfit.internals.losses import function_of_metric, options_of_metric

Tensor = Any


def shared_mean(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.Mean.update_state`, for steps on several replicas.

    If `values` is a scalar or has no row for each example, it describes a whole batch, as the
    batch's loss does. The replacement converts a replica's value to an estimate of the global
    batch's value, and weights it by the replica's share of the examples. A `sample_weight` that has
    no row for each example becomes the batch's weight (`_weighted`). If `values` has a row for each
    example, the rows are averaged as Keras does it.
    """

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = current_replica()
        if replica is not None and replica.has_gathered:
            return _add_share(self, original, values, sample_weight, replica)
        if replica is None or replica.has_all:
            return original(self, values, sample_weight=sample_weight)
        _warn_if_along_the_batch(self, values, replica)
        if sample_weight is None and has_rows_elsewhere(values, replica):
            values = keras.ops.mean(values, axis=range(1, values.shape.rank))  # as Keras does
        if not has_rows_of_examples(values, replica):
            if sample_weight is None:
                values = replica.zero_if_empty(_estimate_for(self, values, replica))
                sample_weight = tf.fill(tf.shape(values), replica.share_as(self.dtype))
            else:
                values, sample_weight = _weighted(self, values, sample_weight, replica)
        else:
            warn_of_rows(values, replica, _given(self), are_weighted=sample_weight is not None)
            if sample_weight is not None and is_scalar(sample_weight):
                # Keras adds the mean of the values, with this one weight. The mean of no values
                # would be NaN.
                values = replica.zero_if_empty(keras.ops.mean(keras.ops.cast(values, self.dtype)))
                values = replica.origins.estimate(values)
                values, sample_weight = _weighted(self, values, sample_weight, replica)
            elif sample_weight is not None:
                sample_weight = _weight_of_rows(self, sample_weight, replica)
        if replica.tries_in_vain:
            return None
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def _add_share(
    metric: keras.Metric,
    original: Callable[..., None],
    values: Any,
    weight: Any,
    replica: Replica,
) -> None:
    """Adds a replica's share of what one device adds to a mean, from the examples of all replicas.

    Every replica computes the same values and weights. Keras adds up their products, and the
    weights, so each replica multiplies the weights by its share. If the values are not the same, as
    those that were computed from other tensors than the gathered ones, nothing is added but a doubt
    (`Replica.warn`).

    Args:
        metric: The metric.
        original: Keras' method that adds to it.
        values: The values of the whole batch.
        weight: The `sample_weight` that was passed with them, or None.
        replica: The replica that is being traced.
    """
    values = keras.ops.convert_to_tensor(values)
    if any(map(replica.origins.is_own, (values, weight))):
        replica.warn(f"{_given(metric)} differs between the replicas.")
        return
    share = replica.share_as(metric.dtype)
    if weight is None:
        weight = tf.fill(tf.shape(values), share)
    else:
        weight = keras.ops.convert_to_tensor(weight, metric.dtype) * share
    with replica.adding_up():
        original(metric, values, sample_weight=weight)


def shared_sum(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.Sum.update_state`, for steps on several replicas.

    If `values` is a scalar or has no row for each example, it describes a whole batch, as the
    batch's loss does. The replacement converts a replica's value to an estimate of the global
    batch's value, and multiplies the estimate by the replica's share of the examples. A
    `sample_weight` is treated as that of a mean. If `values` has a row for each example, the rows
    are added up as Keras does it.
    """

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if not has_rows_of_examples(values, replica):
            if sample_weight is None:
                values = replica.weigh(_estimate_for(self, values, replica))
            else:
                values, sample_weight = _weighted(self, values, sample_weight, replica)
        else:
            warn_of_rows(values, replica, _given(self), are_weighted=sample_weight is not None)
            if sample_weight is not None:
                sample_weight = _weight_of_rows(self, sample_weight, replica)
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def adding_up(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `update_state` of Keras' metrics other than `Mean` and `Sum`.

    Keras' method adds sums over the replica's examples to the metric's variables. These sums need
    no conversion, since kfit adds up the variables of all replicas. So the replacement only sets
    `Replica.adds_up` while Keras' method runs. Without it, kfit would convert the values if the
    metric is a user-written subclass.
    """

    def update_state(self: Any, *args: Any, **kwargs: Any) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, *args, **kwargs)
        with replica.adding_up():
            return original(self, *args, **kwargs)

    return update_state


def _weighted(
    metric: keras.Metric, values: Any, weight: Any, replica: Replica
) -> tuple[Tensor, Tensor]:
    """Converts what describes a whole batch, and its weight, to what a replica adds to a metric.

    Keras adds the products of the values and the weights to one variable, and the weights to
    another one. Both add up to those of the batch if the batch's value of one factor can be
    computed by each replica, as that of a constant or of the number of examples. The other factor
    is then multiplied by the share. If not, kfit warns.

    Args:
        metric: The metric.
        values: The values, without a row for each example.
        weight: The `sample_weight` that was passed with them.
        replica: The replica that is being traced.

    Returns:
        The values and the weight to pass to Keras' method.
    """
    # Keras weights the loss by the size of the batch, which may be that of ragged examples.
    is_size = metric.name == "loss" and getattr(weight, "dtype", None) in (tf.int32, tf.int64)
    weight = keras.ops.convert_to_tensor(weight, metric.dtype)
    if is_size and is_scalar(weight) and common_value(weight, replica) is None:
        replica.origins.count(weight)
    if not replica.can_be_read:
        return replica.zero_if_empty(_estimate_for(metric, values, replica)), weight
    of_batch = None
    if has_rows_of_examples(weight, replica):
        warn_of_rows(weight, replica, _weight_of(metric))
    elif (of_batch := common_value(weight, replica)) is None:
        weight = replica.weigh(estimate_of(weight, replica, _weight_of(metric)))
    elif kinds_of(weight, replica) != COUNT:  # a number of examples adds up as it is
        weight = replica.weigh(of_batch)
    if of_batch is None:
        common = common_value(keras.ops.cast(values, metric.dtype), replica)
        if common is not None:
            return common, weight
        _warn_of_weight(metric, replica)
    return replica.zero_if_empty(_estimate_for(metric, values, replica)), weight


def _weight_of_rows(metric: keras.Metric, weight: Any, replica: Replica) -> Any:
    """Returns the batch's weight of values that have a row for each example.

    It is the replica's weight if that has a row for each example, too; kfit warns if the row
    depends on other examples. If it has none and no replica can compute the batch's weight by
    itself, kfit warns as well.
    """
    if not replica.can_be_read:
        return weight
    if has_rows_of_examples(weight, replica):
        warn_of_rows(weight, replica, _weight_of(metric))
        return weight
    common = common_value(keras.ops.convert_to_tensor(weight, metric.dtype), replica)
    if common is None:
        _warn_of_weight(metric, replica)
    return weight if common is None else common


def _weight_of(metric: keras.Metric) -> str:
    return f"The `sample_weight` of the metric {metric.name!r}"


def _warn_of_weight(metric: keras.Metric, replica: Replica) -> None:
    replica.warn(
        f"{_given(metric)} and its `sample_weight` are both computed from the examples, and one of "
        "them is one number for the batch. Each replica multiplies those of its own examples, so "
        "that the numbers depend on how many replicas there are. Give the metric a value and a "
        "weight for each example, or a weight that is the number of examples or a constant."
    )


def _estimate_for(metric: keras.Metric, value: Any, replica: Replica) -> Tensor:
    """Converts what a metric is given to an estimate in the metric's dtype, as `estimate_of` does.

    Numbers that are not floating-point ones, such as a number of examples, are cast first.
    """
    is_loss = metric.name == "loss"  # the loss that Keras logs
    what = "The loss of this model" if is_loss else _given(metric)
    if isinstance(value, tf.Tensor) and not value.dtype.is_floating:
        value = keras.ops.cast(value, metric.dtype)
    return keras.ops.cast(estimate_of(value, replica, what), metric.dtype)


def _warn_if_along_the_batch(metric: keras.Metric, values: Any, replica: Replica) -> None:
    """Warns if a function of Keras' computes the values of a metric from all examples of the batch.

    It does if its `axis` contains the axis of the examples, as in `PearsonCorrelation(axis=0)`, and
    so do some functions without an axis, such as `keras.losses.dice`.

    Args:
        metric: The metric, whose function has returned `values`.
        values: The values, which lack the axes of `axis`.
        replica: The replica that is being traced.
    """
    if not isinstance(metric, keras.metrics.MeanMetricWrapper) or replica.has_all:
        return
    axis = options_of_metric(metric).get("axis")
    reduced = [axis] if isinstance(axis, int) else list(axis or ())
    rank = len(getattr(values, "shape", ()))  # a metric may return a number of Python
    is_over_batch = axis is None and function_of_metric(metric) in OVER_BATCHES
    if is_over_batch or 0 in axes_of(reduced, rank + len(reduced)):
        replica.warn(f"The metric {metric.name!r} {COMPARES}")


def _given(metric: keras.Metric) -> str:
    # Keras logs the losses of several outputs so, and programs those of their own steps.
    if isinstance(metric, keras.metrics.Mean) and metric.name.endswith("_loss"):
        return f"The loss that is logged as {metric.name!r}"
    return f"What the metric {metric.name!r} is given"


def weighed_by(examples: Callable[[], Tensor | None]) -> Callable[..., Callable[..., None]]:
    """Returns a decorator of `Mean.update_state` that weights each value by the size of its batch.

    It is used for the metrics by which Keras logs the loss of each output of a model. Keras may
    give all batches the same weight, although the last one may be smaller.

    Args:
        examples: A function that returns the number of examples of the current batch, or None if
            the number is not known. Without the number, the weight is the `sample_weight` that was
            passed to `update_state`.
    """

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        def update_state(values: Tensor, sample_weight: Tensor = None) -> None:
            count = examples()
            if count is not None:
                sample_weight = tf.cast(count, tf.float32)
                replica = one_of_several()
                if replica is not None:
                    replica.origins.count(sample_weight)
            original(values, sample_weight)

        return update_state

    return wrap
