"""Which of two values of a monitored quantity is the better one: pure, with its memory."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import keras

from kfit.internals.callbacks import direction_of

Mode: TypeAlias = Literal["auto", "min", "max"]


class Monitor:
    """Remembers the best value of a quantity.

    A value that is no number, or infinite, is never better than another.

    Args:
        name: The quantity, as it is called in the logs.
        mode: Whether less ("min") or more ("max") is better; "auto" asks the model's metrics.
        min_delta: By how much a value must be better.
        best: The value to beat to begin with, or None.

    Raises:
        ValueError: If an argument is wrong.
    """

    def __init__(
        self, name: str, mode: Mode = "auto", *, min_delta: float = 0.0, best: float | None = None
    ) -> None:
        if mode not in ("auto", "min", "max"):
            raise ValueError(f'`mode` must be "auto", "min" or "max". Received: {mode!r}')
        if not min_delta >= 0:
            raise ValueError(f"`min_delta` must be at least 0. Received: {min_delta!r}")
        self.name = name
        self.mode = mode
        self.min_delta = min_delta
        self.best = best

    def resolve(self, model: keras.Model) -> None:
        """Makes "auto" into "min" or "max", by the loss or the metric that is monitored.

        Raises:
            ValueError: If the model has no metric of that name that knows its direction.
        """
        if self.mode != "auto":
            return
        name = self.name.removeprefix("val_")
        if name == "loss" or name.endswith("_loss"):
            self.mode = "min"
            return
        directions = {
            direction_of(metric) for metric in _flat(model.metrics) if metric.name == name
        }
        if directions not in ({"up"}, {"down"}):
            raise ValueError(
                f"`mode` must be 'min' or 'max' for monitor={self.name!r}: no metric of the model "
                "says which direction is the better one."
            )
        self.mode = "max" if directions == {"up"} else "min"

    def is_better(self, value: float) -> bool:
        """Whether `value` is better than the best so far."""
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        if self.mode == "max":
            return value - self.min_delta > self.best
        return value + self.min_delta < self.best

    def state_dict(self) -> dict[str, Any]:
        """What is remembered."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remembers what `state_dict` gave."""
        self.best = state["best"]


def _flat(metrics: Any) -> list[keras.Metric]:
    """Metrics and those inside the ones that hold others, such as the compiled ones."""
    found: list[keras.Metric] = []
    for metric in metrics:
        found.append(metric)
        found += _flat(getattr(metric, "metrics", []))
    return found
