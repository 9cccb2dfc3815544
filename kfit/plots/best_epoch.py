"""Finds the best value of a loss or metric, by the direction that is the better one for it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from kfit.callbacks.monitor import Mode, Monitor

HIGHER = frozenset(
    [
        "accuracy",
        "auc",
        "binary_accuracy",
        "binary_io_u",
        "categorical_accuracy",
        "concordance_correlation",
        "cosine_similarity",
        "f1_score",
        "f_beta_score",
        "io_u",
        "mean_io_u",
        "one_hot_io_u",
        "one_hot_mean_io_u",
        "pearson_correlation",
        "precision",
        "precision_at_recall",
        "r2_score",
        "recall",
        "recall_at_precision",
        "sensitivity_at_specificity",
        "sparse_categorical_accuracy",
        "sparse_top_k_categorical_accuracy",
        "specificity_at_sensitivity",
        "top_k_categorical_accuracy",
    ]
)
"""The names of those of Keras' metrics whose higher values are better."""
LOWER = frozenset(
    [
        "bce",
        "binary_crossentropy",
        "categorical_crossentropy",
        "categorical_hinge",
        "hinge",
        "kl_divergence",
        "log_cosh_error",
        "mae",
        "mape",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "mse",
        "msle",
        "poisson",
        "root_mean_squared_error",
        "sparse_categorical_crossentropy",
        "squared_hinge",
    ]
)
"""The names of those of Keras' metrics whose lower values are better."""


def best_place(name: str, values: np.ndarray, model: Any, mode: Mode) -> int | None:
    """Returns the index of the first of the best values; NaN and infinity are never the best.

    Args:
        name: The name of the loss or metric in the logs, such as "val_accuracy".
        values: The values.
        model: The compiled model, whose metrics say which direction is the better one; None if it
            is not known.
        mode: The better direction, or "auto": "min" for a loss; for a metric the direction that the
            model's metric of this name declares, or else Keras' metric of this name.

    Returns:
        The index; None if no value is finite, or if the better direction is not known.
    """
    monitor = _monitor(name, model, mode)
    if monitor is None or values.ndim != 1:
        return None
    best = None
    for index, value in enumerate(values):
        if monitor.is_better(float(value)):
            best, monitor.best = index, float(value)
    return best


def _monitor(name: str, model: Any, mode: Mode) -> Monitor | None:
    """Returns a monitor whose better direction is known, or None."""
    monitor = Monitor(name, mode)
    try:
        monitor.resolve(keras.Sequential() if model is None else model)
    except ValueError:
        found = _mode_by_name(name.removeprefix("val_"))
        return None if found is None else Monitor(name, found)
    return monitor


def _mode_by_name(name: str) -> Mode | None:
    """Returns the better direction for the name of one of Keras' metrics; None for any other name.

    A metric declares it only once it is made. That makes variables, which starts TensorFlow, and
    then the program can no longer split its CPU into devices.
    """
    for mode, known in _MODES.items():
        if _plain(name) in known:
            return mode
    return None


def _plain(name: str) -> str:
    """Returns a name as it is compared: "mean_io_u" and "MeanIoU" are the same metric."""
    return name.replace("_", "").lower()


_MODES: dict[Mode, set[str]] = {"max": set(map(_plain, HIGHER)), "min": set(map(_plain, LOWER))}
