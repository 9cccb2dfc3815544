"""What all tasks decide together between two executions."""

import numpy as np
import pytest

from kfit.training.decision import _require_one_rate


def test_one_learning_rate_is_fine_also_if_it_is_no_number() -> None:
    for rate in (0.1, 0.0, np.inf, np.nan):
        _require_one_rate(np.full(3, rate))


def test_learning_rates_that_differ_are_named_with_their_workers() -> None:
    says = r"It is 1e-05 on worker 0, 0\.001 on worker 1: a callback has changed it on some workers"
    with pytest.raises(ValueError, match=says):
        _require_one_rate(np.array([1e-5, 1e-3], "float32").astype("float64"))
