"""Runs a few training steps from the same beginning, and compares the results of two runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kfit.checkpoint.state import Entry
from kfit.distribute.strategy import Strategy
from kfit.inputs import Batches, ReadBatches
from kfit.internals.layers import all_layers
from kfit.verification.beginning import Beginning, Change, shaken_by
from kfit.verification.few_batches import inputs_of
from kfit.verification.report import Difference

_SHAKES = 3
"""How many runs with slightly changed numbers show how far rounding errors grow."""
_MARGIN = 16.0
"""How many times the largest effect of these changes still counts as rounding."""


class Way(NamedTuple):
    """How a model is trained on one strategy: the methods of a `kfit.Trainer` that are needed here.

    Attributes:
        strategy: kfit's wrapper of the `tf.distribute` strategy.
        fit: `Trainer.fit`, without calling the model's own `fit`.
        predict: `Trainer.predict`, without calling the model's own `predict`.
        make_variables: Creates all variables that a training step on such batches needs, without
            taking a step.
    """

    strategy: Strategy
    fit: Callable[..., keras.callbacks.History]
    predict: Callable[..., Any]
    make_variables: Callable[[Batches], None]


@dataclass(frozen=True)
class Result:
    """What a run has computed.

    Attributes:
        values: The values of `Beginning.variables` after the last step.
        logs: What `fit` has logged last: loss and metrics by name. What is no number or array of
            numbers is left out, such as None and strings, which a step of the user's may return.
    """

    values: list[np.ndarray]
    logs: dict[str, np.ndarray]


@dataclass(frozen=True)
class Runs:
    """Runs of the same steps, which all begin with the same state.

    Attributes:
        model: The model.
        beginning: The state with which each run begins.
        batches: The batches; each is a step.
    """

    model: keras.Model
    beginning: Beginning
    batches: list[Any]

    def run(self, way: Way, shake: int | None = None) -> Result:
        """Trains on all batches, from the beginning.

        Args:
            way: On which strategy to train.
            shake: A seed, to change all weights and inputs by one unit in the last place before;
                None leaves them as they are.
        """
        change = None if shake is None else shaken_by(epsilon_of(self.model), shake)
        batches = self.batches
        if change is not None:
            batches = [_shaken(batch, change) for batch in batches]
        self.beginning.give(change)
        history = way.fit(ReadBatches(batches), epochs=1, shuffle=False, verbose=0)
        logs = {name: np.asarray(value[-1]) for name, value in history.history.items()}
        numbers = {name: value for name, value in logs.items() if _is_number(value)}
        return Result(self.beginning.now(), numbers)

    def rounding(self, way: Way, base: Result) -> list[Result]:
        """Returns results of runs in which all numbers were changed by about one rounding error.

        Args:
            way: On which strategy to train.
            base: The result without changes.
        """
        return [base, *(self.run(way, shake) for shake in range(_SHAKES))]


def epsilon_of(model: keras.Model) -> float:
    """Returns the rounding error, relative to a number, of the coarsest dtype that a model uses.

    It is 1.2e-7 for float32, and 1e-3 if a layer computes in float16.
    """
    kinds = {layer.compute_dtype for layer in all_layers(model)}
    kinds |= {variable.dtype for variable in model.weights}
    floats = [tf.as_dtype(kind) for kind in kinds if kind and keras.backend.is_float_dtype(kind)]
    return max((_epsilon(dtype) for dtype in floats), default=_epsilon(tf.float32))


def compared(
    runs: Runs, one: Result, other: Result, rounding: Sequence[Result]
) -> tuple[Difference, ...]:
    """Compares two results, part by part.

    A difference is explained by rounding if it is at most 16 times as large as the largest one
    that a change of all numbers by one rounding error makes, or a few rounding errors of the
    variable itself a step.

    Args:
        runs: The runs.
        one: The result on one device.
        other: The result on replicas.
        rounding: Results on one device from slightly changed numbers, as `Runs.rounding` returns.

    Returns:
        A difference for each layer with variables, for the optimizers, and for each logged value.
    """
    floor = 8.0 * epsilon_of(runs.model) * len(runs.batches)
    parts: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for index, entry in enumerate(runs.beginning.variables):
        if entry.part == "metrics" or not _is_number(one.values[index]):
            continue  # metrics are compared by what is logged
        key = _part_of(entry)
        shaken = [result.values[index] for result in rounding]
        found = _relative(one.values[index], other.values[index], shaken, floor)
        # Equal counters and seeds would only lengthen the table.
        if one.values[index].dtype.kind in "fc" or found[0] > 0:
            parts.setdefault(key, []).append(found)
    for name, value in one.logs.items():
        shaken = [result.logs.get(name, np.array(np.nan)) for result in rounding]
        there = other.logs.get(name, np.array(np.nan))
        parts[name, "log"] = [_relative(value, there, shaken, floor)]
    return tuple(_worst(name, kind, found) for (name, kind), found in parts.items())


def layer_of(entry: Entry) -> str:
    """Returns the path of the layer that has a variable."""
    # The names of snapshots lack the numbers by which Keras tells layers apart.
    path: str = getattr(entry.variable, "path", None) or entry.name
    return path.rpartition("/")[0] or path


def are_equal(differences: Sequence[Difference]) -> bool:
    """Returns whether rounding explains all differences."""
    return all(difference.is_equal for difference in differences)


def _relative(
    one: np.ndarray, other: np.ndarray, shaken: Sequence[np.ndarray], floor: float
) -> tuple[float, float]:
    size = _largest(np.abs(one)) or 1.0
    rounding = max((_distance(one, each) for each in shaken), default=0.0)
    if not np.isfinite(rounding):
        rounding = 0.0
    return _distance(one, other) / size, _MARGIN * rounding / size + floor


def _worst(name: str, kind: Any, found: Sequence[tuple[float, float]]) -> Difference:
    """Returns the pair that exceeds its rounding most, as the difference of a part."""
    difference, rounding = max(found, key=lambda pair: pair[0] / pair[1])
    return Difference(name, kind, difference, rounding)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    """Returns the largest difference; infinity where NaN or infinity is on one side only."""
    if one.shape != other.shape:
        return float("inf")
    if one.dtype.kind not in "fc":
        return _largest(np.abs(one.astype("float64") - other.astype("float64")))
    apart = ~(np.isfinite(one) & np.isfinite(other))
    if not np.array_equal(one[apart], other[apart], equal_nan=True):
        return float("inf")
    with np.errstate(invalid="ignore", over="ignore"):
        differences = np.abs(one.astype(complex) - other) if one.dtype.kind == "c" else None
        if differences is None:
            differences = np.abs(one.astype("float64") - other.astype("float64"))
    return _largest(differences)


def _largest(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)] if values.ndim else np.asarray([values])
    return float(finite.max()) if finite.size and np.isfinite(finite).all() else 0.0


def _part_of(entry: Entry) -> tuple[str, str]:
    if entry.part != "model":
        return "optimizer", "optimizer"
    return layer_of(entry), "layer"


def _is_number(value: np.ndarray) -> bool:
    return value.dtype.kind in "biufc"


def _shaken(batch: Any, change: Change) -> Any:
    def leaf(value: Any) -> Any:
        is_plain = isinstance(value, (np.ndarray, tf.Tensor))
        if not is_plain or not tf.as_dtype(value.dtype).is_floating:
            return value
        tensor = tf.convert_to_tensor(value)
        # Whole numbers may be labels, which the step takes out of a batch that is a dict.
        return tf.where(tensor == tf.round(tensor), tensor, change(tensor))

    shaken = keras.tree.map_structure(leaf, inputs_of(batch))
    # Only the inputs: targets such as 0.0 and 1.0 may be labels.
    return (shaken, *batch[1:]) if isinstance(batch, tuple) else shaken


def _epsilon(dtype: tf.DType) -> float:
    return float(np.finfo(dtype.as_numpy_dtype).eps) if dtype.size > 2 else _coarse(dtype)


def _coarse(dtype: tf.DType) -> float:
    return {"float16": 2.0**-10, "bfloat16": 2.0**-7}.get(dtype.name, 2.0**-3)
