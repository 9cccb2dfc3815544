"""Exporters: what is done with a model that was evaluated."""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Collection
from typing import Any

import keras

from kfit.callbacks.monitor import Mode, Monitor
from kfit.saving import whole_path


class Exporter:
    """Gets each model that was evaluated; `EvalSpec(exporters=...)` takes any number.

    What it remembers from evaluation to evaluation it says by `state_dict`, which is kept beside
    the evaluations and given back by `load_state_dict` when the task starts again. An evaluation
    that a crash has cut off is done again, and `export` called again with the same model.
    """

    def check(self, model: keras.Model, metrics: Collection[str]) -> None:
        """Called before training, on all tasks, where these evaluate and the metrics are known.

        Args:
            model: The model.
            metrics: Names of the metrics that an evaluation will have.

        Raises:
            ValueError: If it cannot export with these.
        """

    def export(self, model: keras.Model, directory: str, evaluation: dict[str, Any]) -> None:
        """Called after each evaluation, on the task that writes: the evaluator, or the chief.

        Args:
            model: The model with the weights, and the optimizer's state, of the checkpoint.
            directory: Where to write: `model_dir/export`, which may not be there yet.
            evaluation: What was found, as in a line of `evaluations.jsonl`; the metrics as numbers.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `export`.")

    def reset(self) -> None:
        """Called where evaluations begin anew, in a directory that holds none."""

    def state_dict(self) -> dict[str, Any]:
        """What must survive a restart, as JSON's values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remembers what `state_dict` gave."""


class BestExporter(Exporter):
    """Saves the best model so far as `model_dir/export/<name>.keras`.

    The file appears at once and whole, with the optimizer's state; it loads in Keras without kfit.

    Example:
        >>> best = kfit.BestExporter(monitor="accuracy")
        >>> eval_spec = kfit.EvalSpec(x=x_test, y=y_test, exporters=best)

    Args:
        name: Name of the file, without its ending.
        monitor: Name of the metric that says which model is the best.
        mode: "min", "max", or "auto" for what the metric says of itself.
        min_delta: By how much a value must be better.

    Raises:
        ValueError: If an argument is wrong, or `monitor` is no metric: before training where all
            its tasks evaluate a model whose `test_step` is Keras' own, else at the first
            evaluation.
    """

    def __init__(
        self,
        name: str = "best",
        *,
        monitor: str = "loss",
        mode: Mode = "auto",
        min_delta: float = 0.0,
    ) -> None:
        if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(
                "`name` must be a file's name without an ending: letters, digits, '_', '.' and "
                f"'-'. Received: {name!r}"
            )
        self.name = name
        self._monitor = Monitor(monitor, mode, min_delta=min_delta)
        self._step: int | None = None

    @property
    def best(self) -> float | None:
        """The best value so far."""
        return self._monitor.best

    @property
    def best_step(self) -> int | None:
        """The step of the best model so far."""
        return self._step

    def check(self, model: keras.Model, metrics: Collection[str]) -> None:
        """Checks that there will be such a metric, and which direction is the better one."""
        if self._monitor.name not in metrics:
            raise self._no_metric(metrics)
        self._monitor.resolve(model)

    def export(self, model: keras.Model, directory: str, evaluation: dict[str, Any]) -> None:
        """Saves the model, if it is the best."""
        metrics = evaluation["metrics"]
        name = self._monitor.name
        if not isinstance(metrics.get(name), int | float):
            raise self._no_metric(metrics)
        self._monitor.resolve(model)
        value = float(metrics[name])
        if not math.isfinite(value):
            warnings.warn(f"{name} is {value}; the model is not exported.", stacklevel=2)
        if not self._monitor.is_better(value):
            return
        with whole_path(os.path.join(directory, f"{self.name}.keras")) as path:
            model.save(path)
        self._monitor.best, self._step = value, evaluation["step"]

    def reset(self) -> None:
        """Forgets the best."""
        self.load_state_dict({"best": None, "step": None})

    def state_dict(self) -> dict[str, Any]:
        """The best value, and its step."""
        return {**self._monitor.state_dict(), "step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remembers what `state_dict` gave."""
        self._monitor.load_state_dict(state)
        self._step = state["step"]

    def _no_metric(self, metrics: Collection[str]) -> ValueError:
        return ValueError(
            f"`monitor` must name a number among the metrics of an evaluation, {sorted(metrics)}, "
            f"which have no prefix 'val_'. Received: {self._monitor.name!r}"
        )
