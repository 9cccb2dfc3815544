"""Finds the best value of a loss or metric, by the direction that is the better one for it."""

from __future__ import annotations

from typing import Any, cast

import keras
import numpy as np

from kfit.callbacks.monitor import Mode, Monitor
from kfit.internals.callbacks import direction_of


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
        directions = {"up": "max", "down": "min"}
        found = directions.get(_direction_by_name(name.removeprefix("val_")) or "")
        return None if found is None else Monitor(name, cast(Mode, found))
    return monitor


def _direction_by_name(name: str) -> str | None:
    """Returns "up" or "down" for the name of one of Keras' metrics; None for any other name."""
    try:
        metric = keras.metrics.get(name)
    except (ValueError, TypeError):
        return None
    return direction_of(metric) if isinstance(metric, keras.Metric) else None
