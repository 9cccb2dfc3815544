"""Metrics of the user's own: what a replica adds to one, so that all add up to one device's.

Each replica has its own copy of a metric's variables, and their sum is the metric's. That is right
for an update by a sum over the replica's examples, which all of Keras' metrics make. Of a mean over
them each replica adds its share; what is equal on all replicas, such as the 1 that counts batches,
the first one adds. A running maximum, a moving average or the last value is not added to anything:
that is warned of, by name. Which of them an update is can be read from the graph of the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.placement import owned_metrics
from kfit.exactness.batch_kinds import Addend, addends_of, kinds_of
from kfit.exactness.collectives import is_first_with_examples
from kfit.exactness.origins import captured
from kfit.exactness.own_code import is_of_keras
from kfit.exactness.replica_context import Replica, current_step
from kfit.internals.variables import tf_variable

Tensor = Any

_AS_IT_IS = {"Identity", "Cast", "StopGradient", "EnsureShape"}
_ADDED_AS_IT_IS = {"sum", "count", "unknown"}


class Change(NamedTuple):
    """What an update adds to a variable, or takes from it."""

    value: Tensor
    is_taken: bool


def variables_of_own_metrics(model: keras.Model) -> dict[int, str]:
    """The names of the metrics whose `update_state` is the user's, by their variables' ids."""
    return {
        id(variable): metric.name
        for metric in owned_metrics(model)
        if not is_of_keras(type(metric).update_state)
        for variable in metric.variables
    }


def as_on_one_device(variable: keras.Variable, value: Tensor, replica: Replica) -> Tensor:
    """What a replica has to assign to its copy of a metric's variable.

    Args:
        variable: The variable, of whose copies the sum counts.
        value: What the metric assigns.
        replica: The replica, being traced.
    """
    step = current_step()
    assert step is not None
    if not (tf.is_tensor(value) and replica.hides_rows and replica.origins.is_of_step(value)):
        return value  # of eager code, or of a function that no graph here shows
    handles = [copy.handle for copy in step.strategy.local_results(tf_variable(variable))]
    changes = changes_of(value, handles)
    parts = [_of_whole_batch(change.value, replica) for change in changes or []]
    if changes is None or any(part is None for part in parts):
        warnings.warn(_advice(replica.own_metrics[id(variable)], variable), stacklevel=2)
        return value
    if all(part is change.value for part, change in zip(parts, changes, strict=True)):
        return value
    total = tf.convert_to_tensor(tf_variable(variable))
    for part, change in zip(parts, changes, strict=True):
        part = tf.cast(part, total.dtype)
        total = total - part if change.is_taken else total + part
    return total


def changes_of(value: Tensor, handles: Sequence[Tensor]) -> list[Change] | None:
    """What a value adds to what a variable held; None if that is not all it does.

    Args:
        value: A tensor of the graph that is being traced.
        handles: Those of the variable's copies.
    """
    known = {id(handle) for handle in handles}
    reads = [
        op.outputs[0]
        for op in value.graph.get_operations()
        if op.type == "ReadVariableOp" and id(_outermost(op.inputs[0])) in known
    ]
    dependent = _made_of(reads)
    changes: list[Change] = []
    while not any(value is read for read in reads):
        kind, inputs = value.op.type, list(value.op.inputs)
        held = [each for each in inputs if id(each) in dependent]
        rest = [each for each in inputs if id(each) not in dependent]
        if len(held) != 1:
            return None
        is_first = held[0] is inputs[0]
        if kind in ("AddV2", "Add", "AddN") or (kind == "Sub" and is_first):
            changes += [Change(each, kind == "Sub") for each in rest]
        elif kind == "TensorScatterAdd" and is_first:
            places, added = rest
            changes.append(
                Change(tf.scatter_nd(places, added, tf.shape(value, places.dtype)), False)
            )
        elif kind not in _AS_IT_IS:
            return None
        value = held[0]
    return changes


def _of_whole_batch(value: Tensor, replica: Replica) -> Tensor | None:
    """What a replica adds of a number, so that all add what one device does; None if none would.

    What is equal on all replicas the first one adds; of a mean each adds its share.
    """
    if value.shape.rank == 0 and value.dtype.is_floating:
        addends = addends_of(value, replica)
    else:
        addends = [Addend(value, 1.0, kinds_of(value, replica))]
    if all(each.kinds and each.kinds <= _ADDED_AS_IT_IS for each in addends):
        return value
    if not all(
        len(each.kinds) <= 1 and each.kinds <= {*_ADDED_AS_IT_IS, "mean"} for each in addends
    ):
        return None
    parts = []
    for each in addends:
        part = each.tensor if len(addends) == 1 else each.times(1.0)
        if not each.kinds:
            part = tf.where(is_first_with_examples(replica), part, tf.zeros_like(part))
        parts.append(replica.weigh(part) if each.kinds == {"mean"} else part)
    return parts[0] if len(parts) == 1 else tf.add_n(parts)


def _outermost(tensor: Tensor) -> Tensor:
    """What a function, or one around it, took from outside for this tensor."""
    while hasattr(tensor, "op") and tensor.op.type == "Placeholder":
        outer = captured(tensor)
        if outer is None:
            break
        tensor = outer
    return tensor


def _made_of(tensors: Sequence[Tensor]) -> set[int]:
    """Identities of all tensors that depend on some, those themselves included."""
    waiting, found = list(tensors), set()
    while waiting:
        tensor = waiting.pop()
        if id(tensor) not in found:
            found.add(id(tensor))
            waiting += [output for op in tensor.consumers() for output in op.outputs]
    return found


def _advice(name: str, variable: keras.Variable) -> str:
    return (
        f"The metric {name!r} does more with its variable {variable.name!r} than to add a sum or a "
        "mean over the examples to it, as far as the graph shows (a maximum, a moving average, the "
        "last value, a ratio). On several replicas each one updates a copy of its own, and the "
        "copies are added up, so that the number depends on how many there are. Add sums to "
        "variables in `update_state` and compute from them in `result`; or update the variable "
        "from the values of all replicas, "
        "`tf.distribute.get_replica_context().all_gather(values, axis=0)`, and make it by "
        '`add_variable(..., aggregation="only_first_replica")`.'
    )
