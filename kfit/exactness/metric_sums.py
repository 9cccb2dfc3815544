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

from kfit.exactness.batch_kinds import has_rows_elsewhere, has_rows_of_examples
from kfit.exactness.batch_losses import COMPARES, axes_of
from kfit.exactness.replica_context import Replica, one_of_several
from kfit.exactness.rows import is_scalar
from kfit.exactness.scalar_estimates import estimate_of, warn_of_rows
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.losses import options_of_metric

Tensor = Any


def shared_mean(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.Mean.update_state`, for steps on several replicas.

    If `values` is a scalar or has no row for each example, it describes a whole batch, as the
    batch's loss does. The replacement converts a replica's value to an estimate of the global
    batch's value. The weight of the estimate is `sample_weight` or, by default, the replica's share
    of the examples. If `values` has a row for each example, the rows are averaged as Keras does it.
    """

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        _warn_if_along_the_batch(self, values, replica)
        if sample_weight is None and has_rows_elsewhere(values, replica):
            values = keras.ops.mean(values, axis=range(1, values.shape.rank))  # as Keras does
        if not has_rows_of_examples(values, replica):
            values = replica.zero_if_empty(_estimate_for(self, values, replica))
            if sample_weight is None:
                sample_weight = tf.fill(tf.shape(values), replica.share_as(self.dtype))
        else:
            warn_of_rows(values, replica, _given(self), are_weighted=sample_weight is not None)
            if sample_weight is not None and is_scalar(sample_weight):
                # Keras adds the mean of the values, with this one weight. The mean of no values
                # would be NaN.
                values = replica.zero_if_empty(keras.ops.mean(keras.ops.cast(values, self.dtype)))
        with replica.adding_up():
            return original(self, values, sample_weight=sample_weight)

    return update_state


def shared_sum(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.Sum.update_state`, for steps on several replicas.

    If `values` is a scalar or has no row for each example, it describes a whole batch, as the
    batch's loss does. The replacement converts a replica's value to an estimate of the global
    batch's value, and multiplies the estimate by the replica's share of the examples. If `values`
    has a row for each example, the rows are added up as Keras does it.
    """

    def update_state(self: Any, values: Tensor, sample_weight: Tensor = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, values, sample_weight=sample_weight)
        if not has_rows_of_examples(values, replica):
            values = replica.weigh(_estimate_for(self, values, replica))
        else:
            warn_of_rows(values, replica, _given(self), are_weighted=sample_weight is not None)
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
    """Warns if the `axis` of a metric of Keras' contains the axis of the examples.

    Such a metric, for example `PearsonCorrelation(axis=0)`, computes its values from all examples
    of the batch, and a replica has only its own.

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
    if 0 in axes_of(reduced, rank + len(reduced)):
        warn_user(f"The metric {metric.name!r} {COMPARES}")


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
            original(values, sample_weight if count is None else tf.cast(count, tf.float32))

        return update_state

    return wrap
