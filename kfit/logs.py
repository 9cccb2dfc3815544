"""The logs: metrics of all replicas, read as one dict, and only when somebody looks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf


def read_metrics(model: keras.Model) -> dict[str, Any]:
    """The model's metrics over all examples seen since they were reset.

    Call it outside of the replicas, in the strategy's scope: metric variables are then added up
    over all replicas, which on several workers is a collective.

    Args:
        model: The model.

    Returns:
        Tensors by name, the order being the model's.
    """
    return dict(model.get_metrics_result())


def flat_logs(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs without the dicts in them, such as the compiled metrics' result, as Keras shows them."""
    flat: dict[str, Any] = {}
    for name, value in logs.items():
        flat.update(flat_logs(value) if isinstance(value, Mapping) else {name: value})
    return flat


def combine(outputs: Any, metrics: Mapping[str, Any], num_replicas: int) -> dict[str, Any]:
    """The logs of a step out of what the model's step returned and its metrics.

    As in Keras, the metrics are the logs when their names are those that the step returned;
    otherwise the step's own values are. On several replicas a value that carries a metric's name
    is taken from the metric, which has seen all examples.

    Args:
        outputs: What `train_step` or `test_step` returned, or None if only metrics are looked at.
        metrics: The result of `read_metrics`.
        num_replicas: Number of replicas.
    """
    if outputs is None or not isinstance(outputs, Mapping) or set(outputs) == set(metrics):
        return dict(metrics)
    if num_replicas == 1:
        return dict(outputs)
    return {name: metrics.get(name, value) for name, value in outputs.items()}


def as_numbers(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Logs as Python floats; metrics that are no single number stay arrays."""
    return {name: _as_number(value) for name, value in logs.items()}


def _as_number(value: Any) -> Any:
    if isinstance(value, (tf.Tensor, tf.Variable, keras.Variable)):
        value = value.numpy()
    if isinstance(value, (np.ndarray, np.generic)) and value.ndim == 0:
        return float(value)
    return value
