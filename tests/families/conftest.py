"""Trains models of one family by Keras' own `fit` and by kfit, and compares their numbers.

Most of the time is that of tracing graphs. So Keras trains eagerly, which gives the same numbers,
and kfit reads a tf.data pipeline, for which batches of all sizes share one graph.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

BATCH_SIZE = 8
"""Of 21 examples the last batch has 5, which two replicas share unevenly."""

Made = Callable[[], Any]
Trained = tuple[Any, dict[str, Any]]


def assert_equal_numbers(
    weights: Sequence[Any], history: dict[str, Any], expected: Trained, atol: float = 1e-6
) -> None:
    """Compares weights and a history with those of the model that Keras trained."""
    for weight, wanted in zip(weights, expected[0].weights, strict=True):
        np.testing.assert_allclose(
            weight, wanted.numpy(), rtol=1e-5, atol=atol, err_msg=wanted.path
        )
    assert history.keys() == expected[1].keys()
    for name, values in expected[1].items():
        assert np.isfinite(values).all()
        np.testing.assert_allclose(history[name], values, rtol=1e-5, atol=1e-6, err_msg=name)


def trained_by_keras(make: Made, data: Sequence[Any], **options: Any) -> Trained:
    """Trains for two epochs on one device, by Keras alone."""
    import keras

    keras.utils.set_random_seed(1)
    model = make()
    model.run_eagerly = True
    fixed = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}
    given = dict(zip(("x", "y", "sample_weight"), data, strict=False))
    return model, model.fit(**given, **{**fixed, **options}).history


def trained_by_kfit(make: Made, data: Sequence[Any], strategy: Any, **options: Any) -> Trained:
    """Trains for two epochs on the replicas of a strategy."""
    import keras
    import tensorflow as tf

    import kfit

    keras.utils.set_random_seed(1)
    model = make()
    packed = keras.utils.pack_x_y_sample_weight(*data)
    pipeline = tf.data.Dataset.from_tensor_slices(packed).batch(BATCH_SIZE)
    options = {"epochs": 2, "verbose": 0, **options}
    return model, kfit.Trainer(model, strategy).fit(pipeline, **options).history


@pytest.fixture(scope="session")
def as_in_keras(tiny: Any) -> Callable[..., Any]:
    """Checks that kfit computes what Keras computes, and returns the model that kfit trained."""

    def check(
        make: Made,
        *data: Any,
        replicas: Sequence[int] = (1, 2),
        atol: float = 1e-6,
        **options: Any,
    ) -> Any:
        expected = trained_by_keras(make, data, **options)
        for count in replicas:
            model, history = trained_by_kfit(make, data, tiny.strategy(count), **options)
            assert_equal_numbers(model.get_weights(), history, expected, atol)
        return model

    return check


@pytest.fixture(scope="session")
def trained_elsewhere() -> Callable[..., None]:
    """Checks the numbers of a model that another process has trained against those of Keras."""

    def check(told: tuple[list[np.ndarray], dict[str, Any]], make: Made, *data: Any) -> None:
        assert_equal_numbers(*told, trained_by_keras(make, data))

    return check


@pytest.fixture(scope="session")
def repeats_itself(tiny: Any) -> Callable[..., Any]:
    """Checks that two replicas compute the same bits again, though they draw random numbers."""

    def check(make: Made, *data: Any, **options: Any) -> Any:
        one, again = (trained_by_kfit(make, data, tiny.strategy(2), **options) for _ in range(2))
        assert again[1] == one[1]
        for weight, same in zip(one[0].weights, again[0].weights, strict=True):
            np.testing.assert_array_equal(same, weight, err_msg=weight.path)
        return one[0]

    return check
