"""Exporters: objects that get each evaluated model, and may save it as a file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Sequence
from typing import Any

import keras

from kfit.callbacks.monitor import Mode, Monitor
from kfit.checkpoint.schema import count, number, optional, record, text
from kfit.heartbeat.tracebacks import made_for_user, warn_user
from kfit.saving import whole_path


class Exporter:
    """The base class of objects that get each model which `train_and_evaluate` has evaluated.

    A subclass defines `export`, which may save the model. `EvalSpec(exporters=...)` takes one
    exporter or several. An exporter that keeps a state between evaluations returns it in
    `state_dict`. The state is saved with the evaluations, and passed to `load_state_dict` when the
    task restarts. If a crash interrupts an evaluation, the evaluation is repeated, so `export` may
    be called again with the same model.
    """

    def check(self, model: keras.Model, metrics: Collection[str]) -> None:
        """Checks before training that the exporter can work with the model's metrics.

        It is called on all tasks, but only if the tasks that train also evaluate. It is not called
        if the model overrides `test_step` or `compute_metrics`, since the names of the metrics are
        then not known before the first evaluation.

        Args:
            model: The compiled model, whose metrics have no values yet.
            metrics: Names of the metrics that an evaluation will have.

        Raises:
            ValueError: If the exporter cannot export with these metrics.
        """

    def export(self, model: keras.Model, directory: str, evaluation: dict[str, Any]) -> None:
        """Exports an evaluated model, for example to a file; each subclass must define this method.

        It is called after each evaluation on one task: the evaluator or, without one, the chief.

        Args:
            model: The model with the weights and the optimizer's state of the checkpoint that was
                evaluated.
            directory: The directory to write to: `model_dir/export`, which may not exist yet.
            evaluation: The record of the evaluation, with the keys of a line of
                `evaluations.jsonl`; its metrics are Python numbers or lists.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `export`.")

    def reset(self) -> None:
        """Clears the state that this exporter keeps between evaluations.

        It is called on every exporter before the first evaluation of a training. When the task
        restarts, the saved states are restored by `load_state_dict` instead. An exporter that has
        no saved state, since it is new among the exporters or has another name, is reset.
        """

    def state_dict(self) -> dict[str, Any]:
        """Returns the state to keep when the task restarts, as a dict that JSON can encode.

        NumPy's numbers and arrays in it become Python's numbers and lists.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned before the task was restarted."""


def check_exporters(exporters: Sequence[Any]) -> None:
    """Checks the argument `exporters` of `kfit.EvalSpec`.

    Raises:
        ValueError: If one of them is no exporter, or if two `BestExporter`s would write one file.
    """
    for exporter in exporters:
        if not isinstance(exporter, Exporter):
            raise ValueError(
                "`exporters` must be a kfit.Exporter, such as kfit.BestExporter, or a list of "
                f"them. Received: {exporter!r}"
            )
    names = [exporter.name for exporter in exporters if isinstance(exporter, BestExporter)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(
            "`exporters` must not have two BestExporters of one name, which is that of their file. "
            f"Received: {', '.join(map(repr, twice))} twice. Give one of the two another `name`."
        )


def named(exporters: Sequence[Exporter]) -> dict[str, Exporter]:
    """Returns exporters by names that are the same in every run of the program.

    The name is that of the class, with the name of a BestExporter, such as "BestExporter best".
    Further exporters of a class are named "MyExporter 2" and so on.
    """
    found: dict[str, Exporter] = {}
    seen: dict[str, int] = {}
    for exporter in exporters:
        name = type(exporter).__name__
        if isinstance(exporter, BestExporter):
            name = f"{name} {exporter.name}"
        seen[name] = seen.get(name, 0) + 1
        found[f"{name} {seen[name]}" if seen[name] > 1 else name] = exporter
    return found


@made_for_user
class BestExporter(Exporter):
    """An exporter that saves the best model so far as `model_dir/export/<name>.keras`.

    The file is replaced atomically, so readers never see an incomplete file. It includes the
    optimizer's state. `keras.models.load_model` can load it without kfit.

    Example:
        >>> best = kfit.BestExporter(monitor="accuracy")
        >>> eval_spec = kfit.EvalSpec(x=x_test, y=y_test, exporters=best)

    Args:
        name: Name of the file, without the ending ".keras".
        monitor: Name of the metric that decides which model is the best, without `val_`.
        mode: Whether the best value is the smallest ("min") or the largest ("max"); "auto" uses the
            direction that the metric itself declares.
        min_delta: The amount by which a value must be better than the best value so far to count
            as an improvement.

    Raises:
        ValueError: If an argument is wrong, or `monitor` is not a metric of the evaluation. A wrong
            `monitor` is found before training if the tasks that train also evaluate, and the model
            does not override `test_step` or `compute_metrics`. Otherwise it is found at the first
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
        self._mode_of_state: str | None = None

    @property
    def best(self) -> float | None:
        """The best value of the metric so far; None before the first model is saved."""
        return self._monitor.best

    @property
    def best_step(self) -> int | None:
        """The training step of the best model so far; None before the first model is saved."""
        return self._step

    def check(self, model: keras.Model, metrics: Collection[str]) -> None:
        """Checks that the monitored metric exists, and that it is known which values are better.

        See `Exporter.check` for when it is called, and for the arguments.

        Raises:
            ValueError: If the metric does not exist, or does not declare whether smaller or larger
                values are better.
        """
        if self._monitor.name not in metrics:
            raise self._no_metric(metrics)
        self._resolve(model)

    def export(self, model: keras.Model, directory: str, evaluation: dict[str, Any]) -> None:
        """Saves the model if it is the best so far; see `Exporter.export` for the arguments.

        If the monitored metric is NaN or infinite, a warning is issued and nothing is saved.

        Raises:
            ValueError: If the evaluation has no metric with the monitored name, or its value is not
                a single number; or with `mode="auto"`, if the metric does not declare whether
                smaller or larger values are better.
        """
        metrics = evaluation["metrics"]
        name = self._monitor.name
        if not isinstance(metrics.get(name), int | float):
            raise self._no_metric(metrics)
        self._resolve(model)
        value = float(metrics[name])
        if not math.isfinite(value):
            warn_user(f"{name} is {value}; the model is not exported.")
        if not self._monitor.is_better(value):
            return
        with whole_path(os.path.join(directory, f"{self.name}.keras")) as path:
            model.save(path)
        self._monitor.best, self._step = value, evaluation["step"]

    def reset(self) -> None:
        """Forgets the best value and its training step, so the next model is saved as the best."""
        self._monitor.best = self._step = self._mode_of_state = None

    def state_dict(self) -> dict[str, Any]:
        """Returns the best value and its training step, which are kept when the task restarts.

        With them are the monitor and the mode, by which they were found.
        """
        monitor = self._monitor
        found = {**monitor.state_dict(), "step": self._step}
        return {**found, "monitor": monitor.name, "mode": monitor.mode}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the state that `state_dict` returned.

        If the state is of another monitor or mode, a warning is issued, and the best value is
        sought anew. With `mode="auto"` that may be known only when the model is.

        Raises:
            ValueError: If it is no such state.
        """
        _check_state(state, "the state")
        self.reset()
        if state.get("monitor", self._monitor.name) != self._monitor.name:
            self._begin_anew("monitor", state["monitor"], self._monitor.name)
            return
        self._monitor.load_state_dict(state)
        self._step, self._mode_of_state = state["step"], state.get("mode")
        self._compare_modes()

    def _resolve(self, model: keras.Model) -> None:
        self._monitor.resolve(model)
        self._compare_modes()

    def _compare_modes(self) -> None:
        """Begins anew if the restored best value was found by another mode, as far as is known."""
        modes = self._mode_of_state, self._monitor.mode
        if None not in modes and "auto" not in modes and modes[0] != modes[1]:
            self.reset()
            self._begin_anew("mode", *modes)

    def _begin_anew(self, argument: str, before: Any, now: Any) -> None:
        warn_user(
            f"The BestExporter {self.name!r} has {argument}={now!r}, and had {before!r} when its "
            f"best value was saved. It seeks the best anew, and the next model replaces "
            f"{self.name}.keras."
        )

    def _no_metric(self, metrics: Collection[str]) -> ValueError:
        return ValueError(
            f"`monitor` must name a number among the metrics of an evaluation, {sorted(metrics)}, "
            f"which have no prefix 'val_'. Received: {self._monitor.name!r}"
        )


_check_state = record(
    {"best": optional(number), "step": optional(count)}, may={"monitor": text, "mode": text}
)
"""Checks that a dict can be what `BestExporter.state_dict` returned."""
