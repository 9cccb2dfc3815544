"""Results of metrics that a step reads before it changes the metrics again.

Each replica has a part of a metric's state, and the result over all replicas is computed from the
parts at the end of the step. A result that was read earlier is computed from the parts of that
time, which are kept when the step changes the metric next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.replica_context import ReadResult, Replica, current_step
from kfit.internals.graphs import current_graph

Tensor = Any


def note_read(metric: keras.Metric, values: Iterable[Tensor], replica: Replica) -> None:
    """Records that a step has read a result of a metric.

    Args:
        metric: The metric.
        values: What its `result` has returned.
        replica: The replica that is being traced.
    """
    read = ReadResult(metric, current_graph())
    replica.read_results.update({id(value): read for value in values})


def note_change(variable: keras.Variable, replica: Replica) -> None:
    """Keeps the states of the results that are read already; called before a variable is assigned.

    Args:
        variable: The variable, perhaps of a metric.
        replica: The replica that is being traced.
    """
    for read in replica.read_results.values():
        own = [] if read.is_changed else read.metric.variables
        if any(each is variable for each in own):
            read.is_changed = True
            if read.graph is current_graph():
                read.state = [(each, each.value + 0) for each in own]


def earlier_result(read: ReadResult, name: str, replica: Replica) -> Tensor:
    """Returns a result over all replicas at the time at which the step has read it.

    All replicas must call it, while their step is traced.

    Args:
        read: What is known of the result; the step has changed the metric since.
        name: The name of the result, if the metric has several.
        replica: The replica that is being traced.

    Returns:
        The result; None if the state of that time is not known.
    """
    step = current_step()
    assert step is not None
    if read.state is None or replica.has_all:
        return None
    parts = [(v, part) for v, part in read.state if is_per_replica(v) and v.aggregation == "sum"]
    with replica.summing():
        totals = step.strategy.all_reduce_sum([part for _, part in parts]) if parts else []
    whole = [(variable, total) for (variable, _), total in zip(parts, totals, strict=True)]
    with keras.StatelessScope([*read.state, *whole]):
        result = read.metric.result()
    return result[name] if isinstance(result, dict) else result
