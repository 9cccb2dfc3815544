"""What all tasks decide together between two executions."""

from typing import Any

import keras
import numpy as np
import pytest

from kfit.training import decision
from kfit.training.decision import (
    _has_code_of_program,
    _require_one_rate,
    _require_same_weights,
    _sum_of_squares,
)


def test_one_learning_rate_is_fine_also_if_it_is_no_number() -> None:
    for rate in (0.1, 0.0, np.inf, np.nan):
        _require_one_rate(np.full(3, rate))


def test_learning_rates_that_differ_are_named_with_their_workers() -> None:
    says = r"It is 1e-05 on worker 0, 0\.001 on worker 1: a callback has changed it on some workers"
    with pytest.raises(ValueError, match=says):
        _require_one_rate(np.array([1e-5, 1e-3], "float32").astype("float64"))


def test_weights_may_differ_by_rounding_only() -> None:
    for total in (3.0, 0.0, np.inf, np.nan):
        _require_same_weights(np.full(3, total))
    _require_same_weights(np.array([1.0, 1.000001]))
    says = r"is 1 on worker 0, 1\.001 on worker 1: a callback has changed them on some workers only"
    with pytest.raises(ValueError, match=says):
        _require_same_weights(np.array([1.0, 1.001]))


def test_weights_are_read_in_parts(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.model()
    expected = sum(np.square(v, dtype="float64").sum() for v in model.trainable_variables)
    monkeypatch.setattr(decision, "_AT_ONCE", 7)
    np.testing.assert_allclose(_sum_of_squares(model), expected, rtol=1e-12)


def test_only_code_of_the_program_makes_tasks_compare_their_weights() -> None:
    class Own(keras.callbacks.EarlyStopping):
        """A callback of the user's."""

    assert not _has_code_of_program(keras.callbacks.EarlyStopping())
    assert _has_code_of_program(keras.callbacks.LambdaCallback())
    assert _has_code_of_program(Own())
