"""Converts updates of user-written metrics, so that the replicas' updates add up to one device's.

Each replica has its own copy of a metric's variable; the value of the variable is the sum of the
copies. That is right if the metric adds a sum over the replica's examples, as all metrics of Keras
do. If the metric adds a mean over the examples, each replica must add the mean times its share (its
fraction of the batch's examples). If the metric adds a value that is equal on all replicas, such as
1 to count batches, only one replica must add it. The graph of the step shows which kind an update
is. Updates that do not add to the old value (a running maximum, a moving average, the last value)
cannot be converted; kfit warns of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.owned import owned_metrics
from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.batch_kinds import addends_of, kinds_of
from kfit.exactness.batch_warnings import warn_if_combined
from kfit.exactness.collectives import is_first_with_examples
from kfit.exactness.own_code import is_of_keras
from kfit.exactness.replica_context import OwnVariable, Replica, Step, current_step
from kfit.graphs.kind_reading import Reading
from kfit.graphs.origins import captured
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.graphs import BRANCHES
from kfit.internals.variables import tf_variable

Tensor = Any

_AS_IT_IS = {"Identity", "Cast", "StopGradient", "EnsureShape"}
_ADDED_AS_IT_IS = {"sum", "count"}


class Change(NamedTuple):
    """A value by which an update of a metric changes a variable.

    Attributes:
        value: The value, a tensor.
        is_taken: Whether the value is subtracted from the variable. Otherwise it is added.
    """

    value: Tensor
    is_taken: bool


def variables_of_own_metrics(model: keras.Model) -> dict[int, OwnVariable]:
    """Finds the variables of a model's metrics that have a user-written `update_state`.

    On several replicas kfit must convert what such a metric assigns to its variables.

    Returns:
        The variables, by their ids.
    """
    return {
        id(variable): OwnVariable(metric.name, variable)
        for metric in owned_metrics(model)
        if not is_of_keras(type(metric).update_state)
        for variable in metric.variables
    }


def as_on_one_device(variable: keras.Variable, value: Tensor, replica: Replica) -> Tensor:
    """Returns the value that a replica must assign to its copy of a metric's variable.

    The sum of all replicas' copies is then the value that one device would have assigned. If the
    graph shows that this is not possible, kfit warns, and `value` is returned. If there is no graph
    that can be read, `value` is returned without a warning.

    Args:
        variable: A variable of a user-written metric; its value is the sum of the replicas' copies.
        value: The value that the metric's code assigns on this replica.
        replica: The replica that is being traced.
    """
    step = current_step()
    assert step is not None
    if not replica.can_be_read:
        return value
    name = replica.own_metrics[id(variable)].metric
    other = _other_total(variable, value, replica, step)
    if other is not None:
        warn_user(_advice_on_other(name, variable, other))
        return value
    handles = _handles(variable, step)
    if not replica.origins.is_own(value, handles):
        # Equal on all replicas, and not computed from the variable: it replaces the old value.
        return tf.where(tf.equal(replica.index, 0), value, tf.zeros_like(value))
    changes = changes_of(value, handles)
    for change in changes or []:
        what = f"What the metric {name!r} adds to its variable {variable.name!r}"
        warn_if_combined(change.value, replica, what)
    parts = [_of_whole_batch(change.value, replica) for change in changes or []]
    if changes is None or any(part is None for part in parts):
        warn_user(_advice(name, variable))
        return value
    if all(part is change.value for part, change in zip(parts, changes, strict=True)):
        return value
    total = tf.convert_to_tensor(tf_variable(variable))
    for part, change in zip(parts, changes, strict=True):
        part = tf.cast(part, total.dtype)
        total = total - part if change.is_taken else total + part
    return total


def _other_total(
    variable: keras.Variable, value: Tensor, replica: Replica, step: Step
) -> keras.Variable | None:
    """Finds another variable, of which each replica has its own part, that an update reads.

    Args:
        variable: The variable that the update assigns.
        value: The value that it assigns.
        replica: The replica that is being traced.
        step: The step.

    Returns:
        The other variable; None if there is none.
    """
    totals = [each.variable for each in replica.own_metrics.values()]
    others = [
        each
        for each in totals
        if each is not variable and is_per_replica(each) and each.aggregation == "sum"
    ]
    if not replica.origins.reads(value, [h for each in others for h in _handles(each, step)]):
        return None
    return next(each for each in others if replica.origins.reads(value, _handles(each, step)))


def _handles(variable: keras.Variable, step: Step) -> list[Tensor]:
    return [copy.handle for copy in step.strategy.local_results(tf_variable(variable))]


def warn_if_decided_alone(replica: Replica, step: Step) -> None:
    """Warns if each replica decides by itself whether, or how often, it updates a metric.

    A step may update a metric in a branch of a `tf.cond`, or in a loop. If the condition is
    computed from the examples, it may hold on one replica and not on another one. If it is computed
    from a metric's variable, such as a count of batches, each replica has a count of its own.

    Args:
        replica: The replica whose step has just been traced.
        step: The step, with all replicas of this task.
    """
    if not replica.can_be_read:
        return
    reading = Reading(replica.origins)
    totals = [each.variable for each in replica.own_metrics.values()]
    handles = [h for each in totals if is_per_replica(each) for h in _handles(each, step)]
    for variable, values in replica.assigned.values():
        if not is_per_replica(variable):
            continue
        graphs = {id(value.graph): value.graph for value in values}.values()
        around = [replica.origins.calls_around(graph) for graph in graphs]
        decisions = [op.inputs[0] for ops in around for op in ops if op.type in BRANCHES]
        if any(map(reading.of_decisions, around)):
            by = "the examples. Each replica decides it by its own examples"
        elif any(replica.origins.reads(each, handles) for each in decisions):
            by = "a variable of a metric. Each replica decides it by what it has counted itself"
        else:
            continue
        warn_user(
            f"The step updates the variable {variable.path!r} of a metric in a branch or a "
            "loop. Whether the branch runs, or how often the loop goes round, is computed from "
            f"{by}, so that the numbers depend on how many replicas there are. Let the "
            "metric's `sample_weight` select the examples, or decide by a value of all "
            'replicas, by `tf.distribute.get_replica_context().all_reduce("sum", value)`.'
        )


def changes_of(value: Tensor, handles: Sequence[Tensor]) -> list[Change] | None:
    """Finds the values that an update adds to a variable, or subtracts from it.

    Args:
        value: The value that the update assigns, a tensor of the graph that is being traced.
        handles: The resource handles of the replicas' copies of the variable.

    Returns:
        The added and subtracted values. None if the update does more than add, such as `maximum`.
    """
    known = {id(handle) for handle in handles}
    reads = [
        op.outputs[0]
        for op in value.graph.get_operations()
        if op.type == "ReadVariableOp" and id(_outermost(op.inputs[0])) in known
    ]
    return changes_since(value, reads, reads)


def changes_since(
    value: Tensor, olds: Sequence[Tensor], states: Sequence[Tensor]
) -> list[Change] | None:
    """Finds the values that an update adds to the old value of a variable, or subtracts from it.

    Args:
        value: The value that the update assigns, a tensor of the graph that is being traced.
        olds: The tensors that are the old value.
        states: The old values of all variables that the added values must not be computed from,
            `olds` among them.

    Returns:
        The added and subtracted values. None if the update does more than add, such as `maximum`.
    """
    dependent = _made_of(states)
    changes: list[Change] = []
    while not any(value is old for old in olds):
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
    """Returns the value that a replica must add so that all replicas add what one device does.

    A sum over the replica's examples is added as it is. A mean is multiplied by the replica's share
    (its fraction of the batch's examples). A value that is equal on all replicas, or a constant
    that is divided by the number of examples, is added only by the first replica that has examples.

    Args:
        value: The value that the metric's code adds on this replica.
        replica: The replica that is being traced.

    Returns:
        The value to add; None if `value` is none of these, such as the root of a mean.
    """
    if value.op.type == "Pack" and "other" in kinds_of(value, replica):
        items = [_of_whole_batch(each, replica) for each in value.op.inputs]
        if any(item is None for item in items):
            return None
        return tf.stack(items, value.op.get_attr("axis"))
    addends = addends_of(value, replica)
    if all(each.kinds and each.kinds <= _ADDED_AS_IT_IS for each in addends):
        return value
    if not all(
        len(each.kinds) <= 1 and each.kinds <= {*_ADDED_AS_IT_IS, "mean", "inverse"}
        for each in addends
    ):
        return None
    parts = []
    for each in addends:
        part = each.times(1)
        if not each.kinds or each.kinds == {"inverse"}:
            part = tf.where(is_first_with_examples(replica), part, tf.zeros_like(part))
        parts.append(replica.weigh(part) if each.kinds & {"mean", "inverse"} else part)
    return sum(parts)  # perhaps broadcast


def _outermost(tensor: Tensor) -> Tensor:
    """Returns the tensor that a placeholder in a `tf.function` reads from outside.

    A `tf.function` reads a tensor from outside through a placeholder. If functions are nested, that
    tensor may be a placeholder, too; the result is the tensor outside of all these functions. Any
    tensor other than such a placeholder is returned unchanged.
    """
    while hasattr(tensor, "op") and tensor.op.type == "Placeholder":
        outer = captured(tensor)
        if outer is None:
            break
        tensor = outer
    return tensor


def _made_of(tensors: Sequence[Tensor]) -> set[int]:
    """Returns the ids of the given tensors, and of all tensors that are computed from them."""
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


def _advice_on_other(name: str, variable: keras.Variable, other: keras.Variable) -> str:
    return (
        f"The metric {name!r} reads its variable {other.name!r} to compute what it assigns to its "
        f"variable {variable.name!r}. On several replicas each one has only a part of "
        f"{other.name!r}, and the parts add up to its value, so that the number depends on how "
        f"many replicas there are. If no update assigns {other.name!r}, make it by "
        '`add_variable(..., aggregation="only_first_replica")`. Otherwise let `update_state` add '
        "sums over the examples to variables, and compute from them in `result`."
    )
