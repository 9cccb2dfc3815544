"""`Monitor`: decides whether a value in the logs, such as "val_loss", is the best so far."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias

import keras

from kfit.heartbeat.tracebacks import made_for_user
from kfit.internals.callbacks import direction_of

Mode: TypeAlias = Literal["auto", "min", "max"]


@made_for_user
class Monitor:
    """The best value so far of a loss or metric in the logs, and a rule for what is better.

    A callback that saves the best model uses it. NaN and infinity are never better than any value.

    Args:
        name: The name of the loss or metric in the logs, such as "val_loss".
        mode: Whether a smaller ("min") or a larger ("max") value is better. "auto" means "min" for
            a loss, and for a metric the direction that the model's metric declares; see `resolve`.
        min_delta: How much better than the best value a value must be to count as an improvement.
        best: The best value to start with; None if there is none, so that any value is better.

    Attributes:
        best: The best value so far, or None. `is_better` does not change this attribute; the caller
            sets it.

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
        """Replaces the mode "auto" by "min" or "max"; must be called before `is_better`.

        If the name, without `val_`, is "loss" or ends in "_loss", the mode becomes "min". Otherwise
        it follows from the direction that the model's metric with this name declares.

        Args:
            model: The model, which must be compiled.

        Raises:
            ValueError: If the mode "auto" cannot be replaced. Then the name is not that of a loss,
                and the model's metrics do not give one direction: none has this name, one with this
                name declares no direction, or two declare different ones.
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
        """Returns whether a value is better than the best so far, by more than `min_delta`."""
        if not math.isfinite(value):
            return False
        if self.best is None:
            return True
        if self.mode == "max":
            return value - self.min_delta > self.best
        return value + self.min_delta < self.best

    def state_dict(self) -> dict[str, Any]:
        """Returns the best value so far as a dict, to keep it when training is restarted."""
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the best value from a dict that `state_dict` returned."""
        self.best = state["best"]


def _flat(metrics: Any) -> list[keras.Metric]:
    """Returns a list of metrics together with all metrics that they contain.

    Keras wraps the metrics that are passed to `compile` in one such metric.
    """
    found: list[keras.Metric] = []
    for metric in metrics:
        found.append(metric)
        found += _flat(getattr(metric, "metrics", []))
    return found
