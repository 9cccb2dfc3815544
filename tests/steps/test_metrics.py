"""Which numbers the logs are made of."""

import numpy as np
import pytest
import tensorflow as tf

from kfit.steps.metrics import as_numbers, combine, flat_logs


def test_dicts_in_logs_are_opened() -> None:
    logs = {"loss": 1, "compiled": {"mae": 2, "inner": {"mse": 3}}}
    assert flat_logs(logs) == {"loss": 1, "mae": 2, "mse": 3}


def test_logs_are_floats_in_the_order_of_their_names() -> None:
    logs = as_numbers({"loss": tf.constant(1.5), "auc": np.float32(0.5), "by_class": np.ones(2)})
    assert list(logs) == ["auc", "by_class", "loss"]
    assert (type(logs["auc"]), type(logs["loss"])) == (float, float)
    assert logs["by_class"].shape == (2,)


@pytest.mark.parametrize("outputs", [None, [1.0]])
def test_metrics_are_the_logs_where_a_step_returns_no_dict(outputs: object) -> None:
    assert combine(outputs, {"loss": 1.0, "mae": 2.0}, {}) == {"loss": 1.0, "mae": 2.0}


def test_other_values_of_a_step_are_its_own_but_for_results_of_metrics() -> None:
    outputs = {"loss": 9.0, "norm": 3.0, "error": 9.0}
    metrics = {"loss": 1.0, "mae": 2.0}
    assert combine(outputs, metrics, {}) == outputs
    assert combine({"loss": 9.0, "mae": 9.0}, metrics, {}) == {"loss": 9.0, "mae": 9.0}
    found = combine(outputs, metrics, {"loss": "loss", "error": "mae"})
    assert found == {"loss": 1.0, "norm": 3.0, "error": 2.0}


def test_what_is_computed_from_results_is_told() -> None:
    with pytest.warns(UserWarning, match="returns 'ratio', computed from results of metrics"):
        found = combine({"ratio": 9.0}, {"loss": 1.0}, {"ratio": ""})
    assert found == {"ratio": 9.0}
