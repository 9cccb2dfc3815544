"""Combines the values that a model's step returns on several replicas.

Of a custom `train_step` or `test_step` these are the values to be logged. A result of a metric is
replaced by the same metric's result over the examples of all replicas, under the name that the step
gives it. Of any other value each replica returns its part (`kfit.steps.replica_parts`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.owned import owned_metrics
from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.earlier_results import earlier_result, note_read
from kfit.exactness.replica_context import Replica, current_replica, current_step
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals import patch_points as points
from kfit.internals.patching import patched
from kfit.internals.variables import tf_variable
from kfit.steps.metrics import flat_logs, key_of_result
from kfit.steps.replica_parts import as_tensors, part_of, rows_of

Tensor = Any

_COPYING = {"Cast", "EnsureShape", "Identity", "Reshape", "Snapshot", "Squeeze", "StopGradient"}
"""The operations whose result is the number that they got, perhaps of another dtype or shape."""


@dataclass
class Returned:
    """A record of how the values that a step returns are combined over the replicas.

    It is filled while the step is traced. Values that are in none of the records are those of the
    first replica.

    Attributes:
        results: Maps the name of each value that is a metric's result to the key of that result
            (`key_of_result`). The name of a value that is computed from metrics' results is mapped
            to "".
        metrics: The metrics of these results, by their ids.
        sums: The names of the values of which each replica returns an addend.
        rows: For the name of each value of which each replica returns rows, a function that makes
            the value to be logged of the rows of all replicas.
    """

    results: dict[str, str] = field(default_factory=dict)
    metrics: dict[int, keras.Metric] = field(default_factory=dict)
    sums: set[str] = field(default_factory=set)
    rows: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def forget(self, name: str) -> None:
        """Removes what is recorded of a value, such as by the trace of an earlier graph.

        All graphs of a step share one record, which each of them reads while it is traced. A step
        may return something else under the same name in another graph.
        """
        self.results.pop(name, None)
        self.sums.discard(name)
        self.rows.pop(name, None)


@contextmanager
def noted_results(model: keras.Model) -> Iterator[None]:
    """Context in which each result is recorded that a metric of a model returns.

    The metrics may also be in objects of the program that the model holds.

    Each replica records its results, with their names, in `Replica.results`. So `of_batch` can
    later tell which of the values that a step returns are results of metrics. It also records that
    a metric is being reset, in `Replica.resets`.
    """
    with ExitStack() as stack:
        for metric in _metrics_of(model):
            stack.enter_context(patched(points.RESULT_OF_METRIC, _noted(metric), of=metric))
            stack.enter_context(patched(points.RESET_METRIC, _resetting, of=metric))
        yield


def _metrics_of(model: keras.Model) -> list[keras.Metric]:
    return list({id(each): each for each in [*owned_metrics(model), *model.metrics]}.values())


def _noted(metric: keras.Metric) -> Callable[[Any], Any]:
    def wrap(original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            value = original()
            replica = current_replica()
            if replica is not None:
                named = value if isinstance(value, dict) else {metric.name: value}
                replica.results.update(
                    {id(each): (each, name, metric) for name, each in named.items()}
                )
                note_read(metric, named.values(), replica)
            return value

        return result

    return wrap


def _resetting(original: Callable[[], None]) -> Callable[[], None]:
    def reset_state() -> None:
        replica = current_replica()
        if replica is None:
            return original()
        before, replica.resets = replica.resets, True
        try:
            return original()
        finally:
            replica.resets = before

    return reset_state


def of_batch(
    outputs: Any, replica: Replica, model: keras.Model, returned: Returned | None = None
) -> Any:
    """Puts this replica's part of the logged value in place of each value that a step returned.

    Called while the step of one replica is traced.

    Args:
        outputs: The dict that the step returned.
        replica: A description of the replica that is being traced.
        model: The model, whose metrics the step may have used.
        returned: A record to fill, which says how the parts of all replicas are to be combined.

    Returns:
        A dict from names to tensors, variables, or `()` in place of None.
    """
    record = Returned() if returned is None else returned
    return {
        name: _of_value(name, value, replica, model, record)
        for name, value in flat_logs(outputs).items()
    }


def _of_value(
    name: str, value: Any, replica: Replica, model: keras.Model, returned: Returned
) -> Any:
    returned.forget(name)
    if isinstance(value, (tf.Variable, keras.Variable)):
        return value
    result = _result_of(name, value, replica)
    if result is not None:
        _, of_result, metric = replica.results[result]
        read = replica.read_results[result]
        if read.is_changed:
            earlier = earlier_result(read, of_result, replica)
            if earlier is not None:
                return _equal_on_all(name, earlier, replica, returned)
            warn_user(
                f"The model's step returns {name!r}, a result of the metric {metric.name!r}, and "
                "changes the metric after it has read the result. On several replicas the result "
                "at the end of the step is logged here. Use another metric for each result, or "
                "update the metric outside of branches and loops of the graph."
            )
        returned.results[name] = key_of_result(metric, of_result)
        returned.metrics[id(metric)] = metric
    elif _is_of_metrics(name, value, replica, model):
        returned.results[name] = ""
    is_result = name in returned.results
    value, described = as_tensors(value), f"The value {name!r} that the step returns"
    if not is_result and (found := rows_of(value, replica, described)) is not None:
        if replica.has_all:
            return value
        rows, returned.rows[name] = found
        return rows
    if not isinstance(value, tf.Tensor):
        return value
    if value.dtype.is_floating or value.dtype.is_integer:
        returned.sums.add(name)
    return part_of(described, value, replica, is_result=is_result)


def _equal_on_all(name: str, value: Any, replica: Replica, returned: Returned) -> Any:
    """Returns a replica's part of a value that is equal on all replicas."""
    value = as_tensors(value)
    if not (value.dtype.is_floating or value.dtype.is_integer):
        return value
    returned.sums.add(name)
    return tf.where(tf.equal(replica.index, 0), value, tf.zeros_like(value))


def _is_of_metrics(name: str, value: Any, replica: Replica, model: keras.Model) -> bool:
    """Returns whether a value that a step returns is computed from metrics' variables.

    Without a graph, a value is taken to be computed from a metric if it has the metric's name and
    the step has updated this metric.

    Args:
        name: The name under which the step returns the value.
        value: The value that the step returns.
        replica: A description of the replica that is being traced.
        model: The model, whose metrics the step may have used.
    """
    step = current_step()
    assert step is not None
    own = [v for m in _metrics_of(model) for v in m.variables if is_per_replica(v)]
    if tf.executing_eagerly() or step.strategy.static_shapes:
        # Without a graph to read, the value is taken to be computed from the metric of this name,
        # if the step has updated that metric.
        of_name = [v for m in _metrics_of(model) if m.name == name for v in m.variables]
        return any(id(v) in replica.assigned for v in of_name)
    handles = [copy.handle for v in own for copy in step.strategy.local_results(tf_variable(v))]
    return replica.origins.reads(value, handles)


def _result_of(name: str, value: Any, replica: Replica) -> int | None:
    """Returns the id of a metric's result if `value` is it or a copy of it, else None.

    In a graph, a value is a copy if only operations such as casts and reshapes lie between the
    result and the value. Without a graph, a value is taken for a copy if it has the name of a
    result and is equal to it.

    Args:
        name: The name under which the step returns the value.
        value: The value that the step returns.
        replica: A description of the replica, with the results of metrics.
    """
    while id(value) not in replica.results:
        if not isinstance(value, tf.Tensor):
            return None
        if tf.executing_eagerly():
            for key, (result, known, _) in replica.results.items():
                if known == name and np.array_equal(result, value):
                    return key
            return None
        if value.op.type not in _COPYING:
            return None
        value = value.op.inputs[0]
    return id(value)
