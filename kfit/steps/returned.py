"""What a step of one's own returns, on several replicas.

The result of a metric is that of the replica's own examples there; the logs take the same metric's
over all replicas, under whatever name it is returned. Other scalars stand for the batch: floats for
estimates (`kfit.exactness.scalar_estimates`), and whole numbers for counts, which are added up.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.replica_context import Replica, current_replica, current_step
from kfit.exactness.scalar_estimates import estimate_of
from kfit.internals import patch_points as points
from kfit.internals.patching import patched
from kfit.internals.variables import tf_variable
from kfit.steps.metrics import flat_logs

Tensor = Any


@contextmanager
def noted_results(model: keras.Model) -> Iterator[None]:
    """Within it a replica's step notes what the results of the model's metrics are."""
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
    """What this replica adds to the scalars that a step returned; call it on the replica.

    Args:
        outputs: What the step returned; only a dict is changed.
        replica: The replica.
        model: The model.
        results: Gets, for each name that holds the result of a metric, the name of that result.
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
    """What this replica adds to the scalars among predictions; call it on the replica.

    Args:
        outputs: What a `predict_step` returned, of any structure. What has rows is left as it is.
        replica: The replica.
    """

    def part(value: Any) -> Any:
        tensor = tf.convert_to_tensor(value) if isinstance(value, (int, float)) else value
        if not isinstance(tensor, tf.Tensor) or tensor.shape.rank != 0:
            return value
        return _part("A scalar that `predict_step` returns", tensor, replica, is_result=False)

    return tf.nest.map_structure(part, outputs)


def _metric_of(name: str, value: Any, replica: Replica, model: keras.Model) -> str | None:
    """The name of the metric's result that a value is, or is computed from; None for neither."""
    noted = replica.results.get(id(value))
    if noted is not None:
        return noted[1]
    step = current_step()
    assert step is not None
    own = [v for m in model.metrics for v in m.variables if is_per_replica(v)]
    if tf.executing_eagerly() or step.strategy.static_shapes:
        # Nothing can be read from a graph: a metric that the step has updated is taken for it.
        of_name = [v for m in model.metrics if m.name == name for v in m.variables]
        return name if any(id(v) in replica.assigned for v in of_name) else None
    handles = [copy.handle for v in own for copy in step.strategy.local_results(tf_variable(v))]
    return name if replica.origins.reads(value, handles) else None


def _part(described: str, value: Tensor, replica: Replica, *, is_result: bool) -> Tensor:
    if value.dtype.is_floating:
        if not is_result and not replica.has_all:
            value = estimate_of(value, replica, described)
        return replica.weigh(value)
    if tf.executing_eagerly() or not (value.dtype.is_integer or value.dtype == tf.bool):
        return value
    kinds = frozenset() if replica.has_all else kinds_of(value, replica)
    if not kinds <= {"sum", "count", "unknown"} or (kinds and value.dtype == tf.bool):
        warnings.warn(
            f"{described} is computed from the examples of a replica, and is neither their number "
            "nor a sum over them. It depends on how many replicas there are. Have a metric compute "
            "it, or take it over all replicas, by "
            "`tf.distribute.get_replica_context().all_gather(values, axis=0)`.",
            stacklevel=2,
        )
    if value.dtype == tf.bool:
        return value
    if _is_count(value, replica):
        return replica.zero_if_empty(value)
    return tf.where(tf.equal(replica.index, 0), value, tf.zeros_like(value))


def _is_count(value: Tensor, replica: Replica) -> bool:
    """Whether a whole number is one of this replica's examples, and not of what all have."""
    if replica.has_all:
        return False
    known = tf.get_static_value(value)
    of_examples = known is not None and isinstance(replica.examples, int)
    return replica.origins.is_own(value, ()) or bool(of_examples and known == replica.examples)
