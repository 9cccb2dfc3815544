"""The curves of a training, read from what keeps them: a History, a dict, or files."""

from __future__ import annotations

import csv
import errno
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kfit.callbacks.epoch_times import CURVES
from kfit.heartbeat.tracebacks import warn_user
from kfit.training.arguments import validation_rule


@dataclass
class Curve:
    """The values of one name in the logs.

    Attributes:
        x: The epochs after which the values were taken, counted from 1, or the steps.
        y: The values; for a metric that returns an array, an array for each of `x`.
    """

    x: np.ndarray
    y: np.ndarray


@dataclass
class Curves:
    """The curves of a training.

    Attributes:
        by_name: The curves by their names in the logs, such as "val_loss".
        model: The model, which knows its metrics; None if it is not known.
        resumed_at: The places on the x axis where training resumed.
    """

    by_name: dict[str, Curve]
    model: Any = None
    resumed_at: list[float] = field(default_factory=list)


def curves_of(history: Any, validation_freq: Any = 1) -> Curves:
    """Reads the curves of a training.

    Args:
        history: A `keras.callbacks.History`; a dict from names to lists of values; or the path of a
            file of `keras.callbacks.CSVLogger`, or of the `log_dir` of a TensorBoard callback.
        validation_freq: As it was given to `fit`, for a History or a dict whose validations have
            fewer values than there are epochs.

    Raises:
        ValueError: If `history` is something else, or has no values, or if its values do not match
            `validation_freq`.
    """
    if isinstance(history, str | os.PathLike):
        path = os.fspath(history)
        if not os.path.exists(path):
            says = "`history` must be the path of a file or directory that exists"
            raise FileNotFoundError(errno.ENOENT, says, path)
        read = _of_tensorboard if os.path.isdir(path) else _of_csv
        curves = Curves(read(path))
    elif isinstance(history, Mapping):
        curves = Curves(_of_lists(history, None, validation_freq))
    elif isinstance(getattr(history, "history", None), Mapping):
        epochs = getattr(history, "epoch", None)
        curves = Curves(
            _of_lists(history.history, epochs, validation_freq),
            model=getattr(history, "model", None),
            resumed_at=list(getattr(history, "resumed_at", [])),
        )
    else:
        raise ValueError(
            "`history` must be what `fit` returned, its dict `history.history`, the path of a file "
            "of keras.callbacks.CSVLogger, or the directory of a TensorBoard callback. Received: "
            f"{history!r} (of type {type(history)})"
        )
    if not curves.by_name:
        raise ValueError(f"`history` has no losses or metrics to plot. Received: {history!r}")
    return curves


def _of_lists(
    values: Mapping[str, Any], epochs: Sequence[int] | None, validation_freq: Any
) -> dict[str, Curve]:
    """Returns the curves of a dict from names to lists of values.

    Args:
        values: The dict.
        epochs: The indices of the epochs, from 0; None if they are not known, and are all epochs
            from the first one.
        validation_freq: As for `fit`.
    """
    found = {name: _numbers_of(name, each) for name, each in values.items()}
    most = max((len(each) for each in found.values()), default=0)
    known = list(range(most) if epochs is None or len(epochs) != most else epochs)
    is_validated = validation_rule(validation_freq)
    validated = [epoch for epoch in known if is_validated(epoch)]
    curves = {}
    for name, each in found.items():
        if not len(each):
            continue
        at = known
        if name.startswith("val_") and len(each) != len(known):
            at = validated
        if len(each) != len(at) and not name.startswith("val_"):
            warn_user(
                f"{name!r} is not drawn: it has {len(each)} values for {len(known)} epochs, and it "
                "is not known to which they belong."
            )
            continue
        if len(each) != len(at):
            raise ValueError(
                f"`validation_freq` must be that of `fit`: {name!r} has {len(each)} values for "
                f"{len(known)} epochs. Received: {validation_freq!r}, which means {len(at)} values."
            )
        curves[name] = Curve(np.array(at) + 1, each)
    return curves


def _numbers_of(name: str, values: Any) -> np.ndarray:
    """Returns the values of a metric, NaN for None; no values if no curves can be drawn of them.

    Hooks may put texts into the logs, and a metric may be a matrix.

    Raises:
        ValueError: If there is one value in place of a list of values.
    """
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise ValueError(
            "`history` must have a list of values for each loss and metric, one for each epoch, as "
            f"in what `fit` returns. Received: {name!r} is {values!r}"
        )
    try:
        numbers = np.asarray([math.nan if each is None else each for each in values], float)
    except (TypeError, ValueError):
        return np.zeros(0)
    return numbers if numbers.ndim <= 2 else np.zeros(0)


def _of_csv(path: str) -> dict[str, Curve]:
    """Returns the curves of a file of Keras' CSVLogger, in which each epoch has a row."""
    with open(path, newline="", encoding="utf-8") as file:
        start = file.read(4096)
        file.seek(0)
        separator = next((each for each in ",;\t|" if each in start.partition("\n")[0]), ",")
        rows = list(csv.DictReader(file, delimiter=separator))
    if not rows or "epoch" not in rows[0]:
        raise ValueError(
            f"`history` must be a file of keras.callbacks.CSVLogger, whose first column is named "
            f"epoch. Received: {path!r}"
        )
    curves = {}
    for name in rows[0]:
        found = [(int(row["epoch"]) + 1, _number(row[name])) for row in rows]
        points = [(epoch, value) for epoch, value in found if value is not None]
        if name != "epoch" and points:
            x, y = zip(*points, strict=True)
            curves[name] = Curve(np.array(x), np.array(y))
    return curves


def _number(text: str | None) -> float | None:
    """Returns the number of a cell; None if it has none, as for an epoch without validation."""
    try:
        return float(text or "")
    except ValueError:
        return None


def _of_tensorboard(path: str) -> dict[str, Curve]:
    """Returns the curves of the epochs in the `log_dir` of a TensorBoard callback."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    curves = {}
    for run, prefix in (("train", ""), ("validation", "val_")):
        folder = os.path.join(path, run)
        if not os.path.isdir(folder):
            continue
        events = EventAccumulator(folder, size_guidance={"tensors": 0})
        events.Reload()
        for tag in events.Tags()["tensors"]:
            plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
            if plugin != "scalars" or tag.startswith(f"epoch_{CURVES}"):
                continue  # what takes the time is no metric
            if tag.startswith("epoch_"):
                points = events.Tensors(tag)
                values = [float(make_ndarray(point.tensor_proto)) for point in points]
                name = prefix + tag.removeprefix("epoch_")
                curves[name] = Curve(np.array([p.step + 1 for p in points]), np.array(values))
    return curves
