"""Losses and metrics that a replica can compute only from the examples of all replicas.

The root of a mean, a ratio of sums and a comparison of the examples with each other are no sum of
what the replicas compute from their own examples. If the graph shows that a loss or a metric is of
this kind, it is computed again, by each replica, from the targets and predictions of all replicas.
Then Keras' own result is that of one device. The first computation was only read, and TensorFlow
leaves it out of the graph.

A loss or a metric that draws random numbers, changes variables or uses other tensors of the replica
than it is given is not computed again; kfit warns of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.across_examples import combines_examples
from kfit.exactness.across_layers import warn_of_layers
from kfit.exactness.batch_kinds import has_other_rows, has_rows_of_examples, power_of_number
from kfit.exactness.batch_warnings import are_used
from kfit.exactness.collectives import can_be_placed, gather_rows, may_gather_rows
from kfit.exactness.own_code import calls_own_function, is_of_keras
from kfit.exactness.replica_context import Replica, Trial, current_step, one_of_several
from kfit.exactness.scalar_estimates import estimate_of
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sources import made_from
from kfit.internals.graphs import (
    BRANCHES,
    CALLS,
    LOOPS,
    OWN_PYTHON,
    current_graph,
    graphs_called_by,
)
from kfit.internals.losses import mask_of, set_mask

Tensor = Any

_REPEATABLE = {"Assert", "PrintV2", "ReadVariableOp", "ResourceGather", "ResourceGatherNd"}
"""Operations that TensorFlow does not leave out, but that change nothing if they run twice."""
_MEETINGS = ("Collective", "Nccl")
"""How the types of operations begin in which TensorFlow sums over replicas."""


def loss_of_all(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `keras.losses.Loss.__call__`, for steps on several replicas.

    If a replica cannot compute the loss from its own examples, the replacement computes it from
    those of all replicas, with their sample weights and masks.
    """

    def call(self: keras.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Tensor:
        replica = one_of_several()
        if replica is None:
            return original(self, y_true, y_pred, sample_weight)
        given = (y_true, y_pred, sample_weight)
        return _computed(self, original, given, replica, dtype=self.dtype)

    return call


def own_loss_of_all(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of a `__call__` of a user's loss, for steps on several replicas.

    It does the same as that of `keras.losses.Loss.__call__`. The method reduces the values of the
    examples by itself, and need not weight them.
    """

    def estimated(self: keras.Loss, given: Sequence[Any], named: dict[str, Any]) -> Tensor:
        loss, replica = original(self, *given, **named), one_of_several()
        return loss if replica is None else estimate_of(loss, replica, "What a loss returns")

    @wraps(original)
    def call(self: keras.Loss, *given: Any, **named: Any) -> Tensor:
        replica = one_of_several()
        if replica is None:
            return original(self, *given, **named)
        return _computed(self, estimated, (given, named), replica)

    return call


def metric_of_all(original: Callable[..., None]) -> Callable[..., None]:
    """Returns a replacement of `keras.metrics.MeanMetricWrapper.update_state`, on several replicas.

    If a replica cannot compute what the metric's function returns from its own examples, the
    replacement computes it from those of all replicas. Each replica then adds its share of it.
    """

    def update_state(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        replica = one_of_several()
        if replica is None:
            return original(self, y_true, y_pred, sample_weight)
        return _computed(self, original, (y_true, y_pred, sample_weight), replica)

    return update_state


def _computed(
    owner: Any,
    original: Callable[..., Any],
    given: tuple[Any, ...],
    replica: Replica,
    dtype: str | None = None,
) -> Any:
    """Computes a loss or a metric from the replica's examples, or if need be from those of all.

    Args:
        owner: The loss or the metric.
        original: Its method. It warns if the replica's own examples do not suffice
            (`Replica.warn`).
        given: The arguments of the method: targets, predictions and sample weights, each of which
            may be a structure of tensors.
        replica: The replica that is being traced.
        dtype: The dtype to which the method casts its arguments, if it does.
    """
    step = current_step()
    assert step is not None
    graph = current_graph()
    begin = len(graph.get_operations())

    def may_be_repeated() -> bool:
        if replica.postponed is not None or graph is not step.graph:
            return False
        if not replica.can_be_read and (calls_own_function(owner) or not is_of_keras(owner)):
            return False  # nothing shows whether it changes variables
        own = _own(given, replica)
        return (
            _changes_nothing(graph.get_operations()[begin:])
            and all(_has_rows_in_order(each, replica) for each in own)
            and may_gather_rows(are_fixed=all(_has_fixed_shape(each, replica) for each in own))
        )

    for each in _own(given, replica):
        warn_of_layers(each, replica)
    trial = Trial(may_be_repeated)
    with replica.trying(trial):
        result = original(owner, *given)
    # A row for each example is left to the step, which has only those of the replica.
    if not trial.is_futile or has_rows_of_examples(result, replica):
        for doubt in trial.doubts:
            replica.warn(doubt)
        return result
    of_all = _gathered(given, replica, dtype)
    again = Trial(lambda: False)
    with replica.trying(again), replica.with_gathered():
        result = original(owner, *of_all)
    if again.doubts or _is_own(result, replica):
        return original(owner, *given)  # which warns
    return replica.origins.estimate(result)  # an exact one, on each replica


def _changes_nothing(operations: Sequence[tf.Operation]) -> bool:
    """Returns whether operations leave everything as it is, such as variables, if they run twice.

    Where the replicas have met in them, they need not do so again.
    """
    for op in operations:
        if not op.op_def.is_stateful or op.type in _REPEATABLE or _meets(op):
            continue
        graphs = graphs_called_by(op) if op.type in LOOPS | BRANCHES | CALLS else []
        if not graphs or not all(_changes_nothing(each.get_operations()) for each in graphs):
            return False
    return True


def _meets(op: tf.Operation) -> bool:
    """Returns whether an operation is one in which kfit or TensorFlow sums over the replicas."""
    if op.type.startswith(_MEETINGS):
        return True
    near = (op, *(each.op for each in op.inputs))
    return any(each.name.rpartition("/")[2].startswith(OWN_PYTHON) for each in near)


def _is_own(value: Any, replica: Replica) -> bool:
    """Returns whether a value is computed from tensors of the replica that were not gathered."""
    return replica.origins.is_own(value) or are_used(value, replica.results.keys(), replica)


def _gathered(given: Any, replica: Replica, dtype: str | None) -> Any:
    """Returns the arguments of a loss or a metric for the examples of all replicas.

    It is a collective: all replicas must call it.

    Args:
        given: The arguments, a structure of tensors.
        replica: The replica that is being traced.
        dtype: The dtype to which the tensors are cast before; None if they are not.
    """
    own = _own(given, replica)
    sent = [each if dtype is None else _cast(each, dtype) for each in own]
    of_all = {id(each): all_rows for each, all_rows in zip(own, gather_rows(sent), strict=True)}

    def gathered(value: Any) -> Any:
        whole, mask = of_all.get(id(value), value), _mask_of(value)
        if mask is not None:
            set_mask(whole, of_all.get(id(mask), mask))
        return whole

    return tf.nest.map_structure(gathered, given)


def _own(given: Any, replica: Replica) -> list[Any]:
    """Returns the tensors among the arguments, and their masks, that differ between replicas."""
    parts = tf.nest.flatten(given)
    found = (each for each in (*parts, *map(_mask_of, parts)) if _differs(each, replica))
    return list({id(each): each for each in found}.values())


def _mask_of(value: Any) -> Any:
    return mask_of(value) if tf.is_tensor(value) else None


def _cast(value: Tensor, dtype: str) -> Tensor:
    """Casts a tensor as a loss does, so that its gradients are summed in the dtype of the loss."""
    return value if value.dtype.is_bool else keras.ops.cast(value, dtype)


def _differs(value: Any, replica: Replica) -> bool:
    """Returns whether a value may differ between the replicas; only tensors can."""
    if not tf.is_tensor(value):
        return False
    if not isinstance(value, tf.Tensor):
        return True  # ragged or sparse
    return bool(value.shape.rank) if tf.executing_eagerly() else replica.origins.is_own(value)


def _has_rows_in_order(value: Any, replica: Replica) -> bool:
    """Returns whether a tensor has rows of the replica's examples, in the order of the examples.

    The rows of all replicas, one replica after the other, are then those of one device. An example
    may have several rows, and some examples may have none. It is False for rows that were put to
    the places of others, and for those of several batches one after the other.

    Args:
        value: The tensor.
        replica: The replica that is being traced.
    """
    if not isinstance(value, tf.Tensor) or not can_be_placed(value):
        return False
    if not replica.can_be_read:
        return True
    if not has_rows_of_examples(value, replica) or rows_axis(value) != 0:
        return False
    if has_other_rows(value, replica, by_value=False) or power_of_number(value, replica) != 0:
        return False
    if are_used(value, replica.results.keys(), replica):
        return False
    if combines_examples(value, replica, are_weighted=True):
        return False
    return not any(_reorders(each.op) for each in made_from(value, replica.origins, stop=CALLS))


def _has_fixed_shape(rows: Tensor, replica: Replica) -> bool:
    """Returns whether the rows of all replicas have the same shape in all steps of a graph."""
    if not isinstance(replica.batch_size, int) or not rows.shape[1:].is_fully_defined():
        return False
    return not has_other_rows(rows, replica, by_value=True)


def _reorders(op: tf.Operation) -> bool:
    """Returns whether an operation puts several batches one after the other, into one axis."""
    if op.type == "ConcatV2":
        axis, rank = tf.get_static_value(op.inputs[-1]), op.outputs[0].shape.rank
        if axis is None or rank is None:
            return True
        return sum(rows_axis(part) == int(axis) % rank for part in op.inputs[:-1]) > 1
    if op.type == "Tile":
        axis, times = rows_axis(op.inputs[0]), tf.get_static_value(op.inputs[1])
        return axis is not None and (times is None or bool(times[axis] != 1))
    return op.type == "Reshape" and bool(rows_axis(op.inputs[0]))
