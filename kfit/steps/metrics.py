"""The logs: metrics of all replicas, read as one dict, and only when somebody looks."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_values import is_per_replica


def read_metrics(model: keras.Model, strategy: Strategy) -> dict[str, Any]:
    """The model's metrics over all examples seen since they were reset.

    Call it outside of the replicas, in the strategy's scope: metric variables are then added up
    over all replicas. On several workers that is one exchange for all of them; TensorFlow by itself
    has one for each variable.

    Args:
        model: The model.
        strategy: The adapter.

    Returns:
        Tensors by name, the order being the model's.
    """
    if strategy.num_workers == 1:
        return dict(model.get_metrics_result())
    parts = [
        variable
        for metric in model.metrics
        for variable in metric.variables
        if is_per_replica(variable) and variable.aggregation == "sum"
    ]
    # The scope is Keras' way to compute with other values than those that its variables have.
    with keras.StatelessScope(list(zip(parts, _summed(parts, strategy), strict=True))):
        return dict(model.get_metrics_result())


def _summed(variables: Sequence[keras.Variable], strategy: Strategy) -> list[Any]:
    """The sums of variables over all replicas, each of which has a part."""

    def on_replica() -> list[Any]:
        return list(strategy.all_reduce_sum([variable.value + 0 for variable in variables]))

    return [strategy.local_results(total)[0] for total in strategy.run(on_replica)]


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs without the dicts in them, such as the compiled metrics' result, as Keras shows them."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, Mapping) else {name: value})
    return flat


def combine(outputs: Any, metrics: Mapping[str, Any], results: Mapping[str, str]) -> dict[str, Any]:
    """The logs of a step out of what the model's step returned and its metrics.

    As in Keras, the metrics are the logs when their names are those that the step returned;
    otherwise the step's own values are. On several replicas the result of a metric that is returned
    is taken from the metric, which has seen all examples.

    Args:
        outputs: What `train_step` or `test_step` returned, or None if only metrics are looked at.
        metrics: The result of `read_metrics`.
        results: The names of outputs that are results of metrics, or computed from them, with the
            names that those have in `metrics`; empty on one replica.
    """
    if outputs is None or not isinstance(outputs, Mapping) or set(outputs) == set(metrics):
        return dict(metrics)
    for name in outputs:
        if results.get(name, name) not in metrics and name in results:
            warnings.warn(
                f"The model's step returns {name!r}, computed from results of metrics. On several "
                "replicas these are results of each replica's own examples, and what is logged is "
                "the mean of what was computed from them. Write a `keras.metrics.Metric` whose "
                "`result` computes it.",
                stacklevel=2,
            )
    return {name: metrics.get(results.get(name, ""), value) for name, value in outputs.items()}


def as_numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs as Python floats, by name as in Keras; metrics that are no single number stay arrays."""
    return {name: _as_number(value) for name, value in sorted(logs.items())}


def _as_number(value: Any) -> Any:
    if isinstance(value, (tf.Tensor, tf.Variable, keras.Variable)):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return float(value)
    return value
