"""Makes the logs of a step: the metrics over all replicas, and what the step returned."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.contexts import is_on_devices
from kfit.distribute.strategy import Strategy
from kfit.distribute.variable_values import is_per_replica
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.keras_methods import own_method
from kfit.internals.models import compiled_metrics
from kfit.internals.variables import tf_variable


def read_metrics(model: keras.Model, strategy: Strategy) -> dict[str, Any]:
    """Returns the results of the model's metrics over all examples seen since they were reset.

    This function must be called in the cross-replica context, inside the strategy's scope, so that
    the metrics' variables are summed over all replicas. On several workers it is a collective: all
    tasks must call it. All variables are then summed in one operation, whereas TensorFlow would sum
    each variable separately.

    Args:
        model: The model.
        strategy: kfit's wrapper of the `tf.distribute` strategy.

    Returns:
        The results by name, as tensors, in the order of the model's metrics.
    """
    return _read(model.metrics, lambda: dict(model.get_metrics_result()), strategy)


def read_results(metrics: Sequence[keras.Metric], strategy: Strategy) -> dict[str, Any]:
    """Returns the results of some metrics, by their keys (`key_of_result`).

    A `get_metrics_result` of the model's own is not called: a step that returns the result of a
    metric means this one, and no graph may be able to hold what the method computes.
    """

    def results() -> dict[str, Any]:
        found: dict[str, Any] = {}
        for metric in metrics:
            result = metric.result()
            named = result if isinstance(result, dict) else {metric.name: result}
            found.update({key_of_result(metric, name): each for name, each in named.items()})
        return found

    return _read(metrics, results, strategy)


def key_of_result(metric: keras.Metric, name: str) -> str:
    """Returns a key of a metric's result: several metrics of a program may have the same name."""
    return f"{id(metric)}/{name}"


def _read(
    metrics: Sequence[keras.Metric], results: Callable[[], dict[str, Any]], strategy: Strategy
) -> dict[str, Any]:
    if strategy.num_workers == 1:
        return results()
    parts = [
        variable
        for metric in metrics
        for variable in metric.variables
        if is_per_replica(variable) and variable.aggregation == "sum"
    ]
    # Inside the scope, Keras computes with these values in place of the variables' own ones.
    with keras.StatelessScope(list(zip(parts, _summed(parts, strategy), strict=True))):
        return results()


def _summed(variables: Sequence[keras.Variable], strategy: Strategy) -> list[Any]:
    """Returns, for each variable of a metric, the sum of the values that the replicas have.

    It is a collective: all tasks must call it.
    """

    def on_replica() -> list[Any]:
        return list(strategy.all_reduce_sum([variable.value + 0 for variable in variables]))

    return [strategy.local_results(total)[0] for total in strategy.run(on_replica)]


def settings_of_results(model: keras.Model) -> Any:
    """Returns the settings from which Keras computes the results of a model's metrics.

    Keras computes the results of an epoch or an evaluation in Python, and so with the settings that
    the metrics have then. A graph that reads the results is good for one value of this function.

    Returns:
        A value to compare; None if the program's own code computes a result, so that nothing tells
        on what it depends.
    """
    if own_method(model, "get_metrics_result") is not None:
        return None
    compiled = compiled_metrics(model)
    settings = []
    for metric in model.metrics:
        for part in compiled.metrics if metric is compiled else [metric]:
            if "result" in vars(part) or not _is_of_keras(type(part).result):
                return None
            plain = {name: v for name, v in vars(part).items() if isinstance(v, _PLAIN)}
            settings.append((id(part), plain))
    return settings


_PLAIN = (bool, int, float, str, type(None))


def _is_of_keras(function: Any) -> bool:
    return str(function.__module__).partition(".")[0] == "keras"


def reset_metrics(model: keras.Model) -> None:
    """Does what `model.reset_metrics()` does, in less time.

    Metrics of the classes of Keras set their variables to zeros, which Keras does by an operation
    for each variable that takes longer than a small step. Other metrics reset themselves.

    Args:
        model: The model; the variables of its metrics must not be on a strategy's devices.
    """
    if own_method(model, "reset_metrics") is not None:
        model.reset_metrics()
        return
    compiled = compiled_metrics(model)
    for metric in model.metrics:
        for part in compiled.metrics if metric is compiled and compiled.built else [metric]:
            cleared = _CLEARED_BY.get(getattr(part.reset_state, "__func__", None))
            values = [tf_variable(variable) for variable in cleared(part)] if cleared else []
            if values and all(map(_is_plain, values)):
                for value in values:
                    value.assign(_zeros(value.shape, value.dtype), read_value=False)
            else:
                part.reset_state()


_CLEARED_BY: dict[Any, Callable[[Any], list[keras.Variable]]] = {
    keras.metrics.Metric.reset_state: lambda metric: metric.variables,
    keras.metrics.Mean.reset_state: lambda mean: [mean.total, mean.count],
    keras.metrics.Sum.reset_state: lambda sum: [sum.total],
}
"""Keras' functions that reset metrics, each with the variables that it sets to zeros."""


def _is_plain(value: Any) -> bool:
    return isinstance(value, tf.Variable) and not is_on_devices(value)


@lru_cache(maxsize=256)
def _zeros(shape: tf.TensorShape, dtype: tf.DType) -> tf.Tensor:
    return tf.zeros(shape, dtype)


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns logs without nested dicts: the entries of a nested dict become entries of the logs.

    Keras shows logs like this. For example, the result of the compiled metrics is a nested dict.
    """
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, Mapping) else {name: value})
    return flat


def combine(outputs: Any, metrics: Mapping[str, Any], results: Mapping[str, str]) -> dict[str, Any]:
    """Combines what a model's step returned with the model's metrics into the logs of the step.

    As in Keras, the logs of a step are the dict that it returned. On several replicas, a metric's
    result that the step returned is the result over one replica's examples. So it is replaced by
    the result over the examples of all replicas. A value that the step only computed from results
    of metrics cannot be replaced, and a warning names it.

    Args:
        outputs: What `train_step` or `test_step` returned, or None if only the metrics are needed.
            An empty tuple among its values stands for None.
        metrics: The results of the metrics, as `read_metrics` or `read_results` returns them.
        results: Maps the name of each output that is the result of a metric to the key of that
            result in `metrics`. The name of an output that is only computed from results is mapped
            to "". Empty on one replica.
    """
    if outputs is None:
        return dict(metrics)
    for name in outputs:
        if results.get(name, name) not in metrics and name in results:
            warn_user(
                f"The model's step returns {name!r}, computed from results of metrics. On several "
                "replicas these are results of each replica's own examples, and what is logged is "
                "the mean of what was computed from them. Write a `keras.metrics.Metric` whose "
                "`result` computes it."
            )
    return {
        name: metrics.get(results.get(name, ""), None if _is_empty(value) else value)
        for name, value in outputs.items()
    }


def _is_empty(value: Any) -> bool:
    return isinstance(value, tuple) and not value


def as_numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Converts logs for callbacks: scalars become Python floats, other tensors become arrays.

    Ragged and sparse tensors stay as they are, and strings become bytes. As in Keras, the result is
    sorted by name, and a nested dict, such as the result of a metric, is replaced by its entries.
    """
    numbers: dict[str, Any] = {}
    for name, value in sorted(logs.items()):
        is_nested = isinstance(value, Mapping)
        numbers.update(as_numbers(value) if is_nested else {name: _as_number(value)})
    return numbers


def _as_number(value: Any) -> Any:
    if isinstance(value, (tf.Tensor, tf.Variable, keras.Variable)):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return float(value)
    return value
