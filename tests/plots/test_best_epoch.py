"""The best value of a loss or metric."""

from typing import Any

import numpy as np
import pytest

from kfit.plots.best_epoch import best_place

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("loss", "auto", 1),
        ("val_dense_loss", "auto", 1),
        ("val_accuracy", "auto", 3),
        ("mae", "auto", 1),
        ("AUC", "auto", 3),
        ("learning_rate", "auto", None),
        ("learning_rate", "max", 3),
        ("loss", "max", 3),
        ("", "auto", None),
    ],
)
def test_which_direction_is_better(name: str, mode: Any, expected: Any) -> None:
    assert best_place(name, np.array([3.0, 1.0, NAN, 4.0, 4.0, float("inf")]), None, mode) == (
        expected
    )


def test_none_is_finite() -> None:
    assert best_place("loss", np.array([NAN, float("inf")]), None, "auto") is None
    assert best_place("loss", np.array([]), None, "auto") is None
