"""Monitor: compares values of a quantity in the logs, such as "val_loss", with the best so far."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import keras

from kfit.internals.callbacks import direction_of

Mode: TypeAlias = Literal["auto", "min", "max"]


class Monitor:
    """The best value so far of a quantity in the logs, and what counts as better.

    NaN and infinity are never better than another value.

    Args:
        name: The name of the quantity in the logs.
        mode: Whether a smaller ("min") or a larger ("max") value is better; "auto" uses the
            direction that the model's metric declares.
        min_delta: How much better than the best value a value must be to count as an improvement.
        best: The best value to start with, or None.

    Attributes:
        best: The best value so far, or None. `is_better` does not change it: the caller sets it.

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
        """Replaces the mode "auto" by "min" or "max", according to the loss or metric of the model.

        Raises:
            ValueError: If the mode is "auto" and the model has no metric of that name that declares
                a direction.
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
        """Returns whether `value` is better than the best so far, by more than `min_delta`."""
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        if self.mode == "max":
            return value - self.min_delta > self.best
        return value + self.min_delta < self.best

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that must survive a restart."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned."""
        self.best = state["best"]


def _flat(metrics: Any) -> list[keras.Metric]:
    """Lists metrics and the metrics that they contain, such as those of the compiled metrics."""
    found: list[keras.Metric] = []
    for metric in metrics:
        found.append(metric)
        found += _flat(getattr(metric, "metrics", []))
    return found
