"""Combines the values that a custom `train_step` or `test_step` returns on several replicas.

- A result of a metric is replaced by the same metric's result over the examples of all replicas,
  under the name that the step gives it.
- Any other scalar is taken for a value of the whole batch: each replica returns a part, and the sum
  of the parts is logged. How the part is computed depends on the scalar's type.
- A float is taken for an estimate, such as a mean over the replica's own examples (see
  `kfit.exactness.scalar_estimates`). The part is the estimate times the replica's share of the
  examples.
- An integer that is computed from examples is taken for a count, which is a part already. Any other
  integer is taken to be equal on all replicas, and is logged unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.replica_context import Replica, current_replica, current_step
from kfit.exactness.scalar_estimates import estimate_of
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals import patch_points as points
from kfit.internals.patching import patched
from kfit.internals.variables import tf_variable
from kfit.steps.metrics import flat_logs

Tensor = Any

_COPYING = {"Cast", "EnsureShape", "Identity", "Reshape", "Snapshot", "Squeeze", "StopGradient"}
"""The operations whose result is the number that they got, perhaps of another dtype or shape."""


@contextmanager
def noted_results(model: keras.Model) -> Iterator[None]:
    """Context in which each result that a metric of `model` returns is recorded.

    Each replica records its results, with their names, in `Replica.results`. So `of_batch` can
    later tell which of the values that a step returns are results of metrics.
    """
    with ExitStack() as stack:
        for metric in {id(metric): metric for metric in model.metrics}.values():
            stack.enter_context(patched(points.RESULT_OF_METRIC, _noted(metric), of=metric))
        yield


def _noted(metric: keras.Metric) -> Callable[[Any], Any]:
    def wrap(original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            value = original()
            replica = current_replica()
            if replica is not None:
                named = value if isinstance(value, dict) else {metric.name: value}
                replica.results.update({id(each): (each, name) for name, each in named.items()})
            return value

        return result

    return wrap


def of_batch(
    outputs: Any, replica: Replica, model: keras.Model, results: dict[str, str] | None = None
) -> Any:
    """Puts what this replica adds to the logged value in place of each scalar that a step returned.

    The logged value is the sum of what all replicas add. A scalar that is no number, such as a
    boolean, stays unchanged. Called while the step of one replica is traced.

    Args:
        outputs: What the step returned. If it is not a dict, it is returned unchanged.
        replica: A description of the replica that is being traced.
        model: The model, whose metrics the step may have used.
        results: A dict to fill, from the names of outputs. An output that is a metric's result is
            mapped to the name of that result. An output that is computed from nothing but metrics'
            results is mapped to "".
    """
    if not isinstance(outputs, dict):
        return outputs
    parts = {}
    for name, value in flat_logs(outputs).items():
        metric = _metric_of(name, value, replica, model)
        if metric is not None and results is not None:
            results[name] = metric
        tensor = tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value
        if isinstance(tensor, tf.Tensor) and tensor.shape.rank == 0:
            described = f"The value {name!r} that the step returns"
            tensor = _part(described, tensor, replica, is_result=metric is not None)
        parts[name] = tensor
    return parts


def of_predictions(outputs: Any, replica: Replica) -> Any:
    """Replaces each scalar among predictions by this replica's part of the value to be returned.

    The value that the user gets is the sum of the parts of all replicas. Called while the step of
    one replica is traced.

    Args:
        outputs: What a `predict_step` returned, of any structure. Tensors with rows, and scalars
            that are no numbers, stay unchanged.
        replica: A description of the replica that is being traced.
    """

    def part(value: Any) -> Any:
        tensor = tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value
        if not isinstance(tensor, tf.Tensor) or tensor.shape.rank != 0:
            return value
        return _part("A scalar that `predict_step` returns", tensor, replica, is_result=False)

    return tf.nest.map_structure(part, outputs)


def _metric_of(name: str, value: Any, replica: Replica, model: keras.Model) -> str | None:
    """Finds out whether a value that a step returns is a metric's result, or is computed from one.

    Without a graph, a value is taken to be computed from a metric if it has the metric's name and
    the step has updated this metric.

    Args:
        name: The name under which the step returns the value.
        value: The value that the step returns.
        replica: A description of the replica that is being traced.
        model: The model, whose metrics the step may have used.

    Returns:
        The name of the result, if the value is a metric's result or a copy of one; "" if the value
        is only computed from metrics; None if the value has nothing to do with metrics.
    """
    result = _result_of(name, value, replica)
    if result is not None:
        return result
    step = current_step()
    assert step is not None
    own = [v for m in model.metrics for v in m.variables if is_per_replica(v)]
    if tf.executing_eagerly() or step.strategy.static_shapes:
        # Without a graph to read, the value is taken to be computed from the metric of this name,
        # if the step has updated that metric.
        of_name = [v for m in model.metrics if m.name == name for v in m.variables]
        return "" if any(id(v) in replica.assigned for v in of_name) else None
    handles = [copy.handle for v in own for copy in step.strategy.local_results(tf_variable(v))]
    return "" if replica.origins.reads(value, handles) else None


def _result_of(name: str, value: Any, replica: Replica) -> str | None:
    """Returns the name of a metric's result if `value` is this result or a copy of it, else None.

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
            of_name = (result for result, known in replica.results.values() if known == name)
            return name if any(np.array_equal(result, value) for result in of_name) else None
        if value.op.type not in _COPYING:
            return None
        value = value.op.inputs[0]
    return replica.results[id(value)][1]


def _part(described: str, value: Tensor, replica: Replica, *, is_result: bool) -> Tensor:
    if value.dtype.is_floating:
        if not is_result and not replica.has_all:
            value = estimate_of(value, replica, described)
        return replica.weigh(value)
    if tf.executing_eagerly() or not (value.dtype.is_integer or value.dtype == tf.bool):
        return value
    kinds = frozenset() if replica.has_all else kinds_of(value, replica)
    if not kinds <= {"sum", "count", "unknown"} or (kinds and value.dtype == tf.bool):
        warn_user(
            f"{described} is computed from the examples of a replica, and is neither their number "
            "nor a sum over them. It depends on how many replicas there are. Have a metric compute "
            "it, or take it over all replicas, by "
            "`tf.distribute.get_replica_context().all_gather(values, axis=0)`."
        )
    if value.dtype == tf.bool:
        return value
    if _is_count(value, replica):
        return replica.zero_if_empty(value)
    return tf.where(tf.equal(replica.index, 0), value, tf.zeros_like(value))


def _is_count(value: Tensor, replica: Replica) -> bool:
    """Returns whether an integer that a step returns is a count over this replica's own examples.

    The counts of all replicas are later summed. An integer is taken for a count if it is computed
    from the replica's examples, or is a constant equal to their number. Any other integer is taken
    to be equal on all replicas. The result is False if each replica has the whole batch.
    """
    if replica.has_all:
        return False
    known = tf.get_static_value(value)
    of_examples = known is not None and isinstance(replica.examples, int)
    return replica.origins.is_own(value, ()) or bool(of_examples and known == replica.examples)
