"""Says of a run whether it leaves numbers to compare, and if not, what its first cause is."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.verification.report import joined
from kfit.verification.runs import Result, Runs, layer_of

_BEFORE = "They are so before the first step: the model was saved or made like that."
_DATA = "The first cause: batch {batch} of the data that were read holds NaN or infinity."
_DIVERGES = (
    "Weights and data are numbers before, so the training itself diverges. Try a smaller learning "
    "rate; `tf.debugging.enable_check_numerics()` names the first operation that gives NaN."
)


def require_numbers(runs: Runs, result: Result) -> None:
    """Checks that weights of every trained variable are numbers after a run.

    Args:
        runs: The runs.
        result: The result on one device.

    Raises:
        ValueError: If a trained variable has only NaN and infinity, which are equal to those of
            any other run.
    """
    lost = _lost(runs, result.values)
    if not lost:
        return
    told = (
        f"there is nothing to compare: after {len(runs.batches)} steps on one device, all weights "
        f"of {joined(lost)} are NaN or infinite."
    )
    raise ValueError(f"{told} {_cause(runs)}")


def without_numbers(result: Result) -> list[str]:
    """Returns the names of the logged values that hold only NaN and infinity."""
    return [name for name, value in result.logs.items() if _has_none(value)]


def _cause(runs: Runs) -> str:
    runs.beginning.give()
    if _lost(runs, runs.beginning.now()):
        return _BEFORE
    bad = [number for number, batch in enumerate(runs.batches, 1) if _is_bad(batch)]
    return _DATA.format(batch=bad[0]) if bad else _DIVERGES


def _lost(runs: Runs, values: list[np.ndarray]) -> list[str]:
    """Returns the names of the layers of which a trained variable has no number that is finite."""
    trained = {id(variable) for variable in runs.model.trainable_variables}
    found = zip(runs.beginning.variables, values, strict=True)
    lost = [e for e, value in found if id(e.variable) in trained and _has_none(value)]
    return list(dict.fromkeys(layer_of(entry) for entry in lost))


def _has_none(value: np.ndarray) -> bool:
    return value.dtype.kind in "fc" and bool(value.size) and not np.isfinite(value).any()


def _is_bad(batch: Any) -> bool:
    def is_bad(leaf: Any) -> bool:
        value = getattr(leaf, "values", leaf)  # of a ragged or sparse tensor
        is_plain = isinstance(value, (np.ndarray, tf.Tensor))
        if not is_plain or not tf.as_dtype(value.dtype).is_floating:
            return False
        return not bool(np.isfinite(np.asarray(tf.cast(value, tf.float64))).all())

    return any(is_bad(leaf) for leaf in keras.tree.flatten(batch))
