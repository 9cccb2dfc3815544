"""Metrics of the user's own: what a replica adds to one, so that all add up to one device's.

Each replica has its own copy of a metric's variables, and their sum is the metric's. That is right
for an update by a sum over the replica's examples, which all of Keras' metrics make. Of a mean over
them each replica adds its share; what is equal on all replicas, such as the 1 that counts batches,
the first one adds. A running maximum, a moving average or the last value is not added to anything:
that is warned of, by name. Which of them an update is can be read from the graph of the step.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kfit.distribute.batch_kinds import Kinds, kinds_of
from kfit.distribute.origins import captured
from kfit.distribute.own_code import is_of_keras
from kfit.distribute.placement import owned_metrics
from kfit.distribute.replicas import Replica, current_step
from kfit.distribute.sums import is_first_with_examples

Tensor = Any

_AS_IT_IS = {"Identity", "Cast", "StopGradient", "EnsureShape"}


class Addend(NamedTuple):
    """What an update adds to a variable, or takes from it, and what it is of the examples."""

    value: Tensor
    is_taken: bool
    kinds: Kinds


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
    handles = [copy.handle for copy in step.strategy.local_results(variable._value)]
    addends = addends_of(value, handles, replica)
    if addends is None or any(_change(addend.kinds) is None for addend in addends):
        warnings.warn(_advice(replica.own_metrics[id(variable)], variable), stacklevel=2)
        return value
    changes = [_change(addend.kinds) for addend in addends]
    if all(change is _as_it_is for change in changes):
        return value
    total = tf.convert_to_tensor(variable._value)
    for addend, change in zip(addends, changes, strict=True):
        assert change is not None
        part = tf.cast(change(addend.value, replica), total.dtype)
        total = total - part if addend.is_taken else total + part
    return total


def addends_of(value: Tensor, handles: Sequence[Tensor], replica: Replica) -> list[Addend] | None:
    """What a value adds to what a variable held; None if that is not all it does.

    Args:
        value: A tensor of the graph that is being traced.
        handles: Those of the variable's copies.
        replica: The replica.
    """
    known = {id(handle) for handle in handles}
    reads = [
        op.outputs[0]
        for op in value.graph.get_operations()
        if op.type == "ReadVariableOp" and id(_outermost(op.inputs[0])) in known
    ]
    dependent = _made_of(reads)
    addends: list[Addend] = []
    while not any(value is read for read in reads):
        kind, inputs = value.op.type, list(value.op.inputs)
        held = [each for each in inputs if id(each) in dependent]
        rest = [each for each in inputs if id(each) not in dependent]
        if len(held) != 1:
            return None
        if kind in ("AddV2", "Add", "AddN") or (kind == "Sub" and held == inputs[:1]):
            addends += [Addend(each, kind == "Sub", kinds_of(each, replica)) for each in rest]
        elif kind == "TensorScatterAdd" and held == inputs[:1]:
            kinds: Kinds = frozenset().union(*(kinds_of(each, replica) for each in rest))
            part = tf.zeros_like(value)
            part = tf.tensor_scatter_nd_add(part, *rest)
            addends.append(Addend(part, False, frozenset({"sum"}) if kinds else kinds))
        elif kind not in _AS_IT_IS:
            return None
        value = held[0]
    return addends


def _change(kinds: Kinds) -> Callable[[Tensor, Replica], Tensor] | None:
    """What a replica adds of an addend; None if nothing that it has would do."""
    if not kinds:
        return _once
    if kinds <= {"sum", "count", "unknown"}:
        return _as_it_is
    return _weighed if kinds == {"mean"} else None


def _as_it_is(value: Tensor, replica: Replica) -> Tensor:
    return value


def _weighed(value: Tensor, replica: Replica) -> Tensor:
    return replica.weigh(value)


def _once(value: Tensor, replica: Replica) -> Tensor:
    return tf.where(is_first_with_examples(replica), value, tf.zeros_like(value))


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
