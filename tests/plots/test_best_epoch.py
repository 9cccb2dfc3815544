"""The best value of a loss or metric."""

import inspect
import subprocess
import sys
from typing import Any

import keras
import numpy as np
import pytest

from kfit.internals.callbacks import direction_of
from kfit.plots.best_epoch import HIGHER, LOWER, best_place

NAN = float("nan")


@pytest.mark.parametrize(
    ("name", "mode", "expected"),
    [
        ("loss", "auto", 1),
        ("val_dense_loss", "auto", 1),
        ("val_accuracy", "auto", 3),
        ("mae", "auto", 1),
        ("AUC", "auto", 3),
        ("MeanIoU", "auto", 3),
        ("val_MeanAbsoluteError", "auto", 1),
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


def test_the_names_are_those_of_keras() -> None:
    """Every metric that can be made without arguments declares the direction of its name."""
    for name in sorted(HIGHER | LOWER):
        try:
            metric = keras.metrics.get(name)
        except TypeError:  # it needs arguments
            continue
        direction = direction_of(metric)
        assert direction in (None, "up" if name in HIGHER else "down"), name
    values = np.array([1.0, 2.0])
    for name, found in inspect.getmembers(keras.metrics, inspect.isclass):
        try:
            direction = direction_of(found())
        except TypeError:
            continue
        expected = {"up": 1, "down": 0}
        if direction is not None:
            assert best_place(name, values, None, "auto") == expected[direction], name


@pytest.mark.long
def test_tensorflow_is_not_started() -> None:
    """After it, the program can still split its CPU into devices."""
    program = (
        "import kfit; kfit.plot_history({'accuracy': [1.0, 2.0], 'loss': [2.0, 1.0]})\n"
        "from tensorflow.python.eager import context\n"
        "print(context.context()._initialized)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
