"""Several strategies of TensorFlow's in one process."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit


def test_strategies_do_not_meet_each_other(tiny: Any) -> None:
    """On CPUs TensorFlow's default sums with collectives, as on GPUs."""
    made = []
    for units in (4, 10, 4):
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        ended = []
        for chosen in ("one_device", strategy):
            keras.utils.set_random_seed(1)
            model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(units)])
            model.compile("sgd", "mse")
            x = np.linspace(0, 1, 60, dtype="float32").reshape(20, 3)
            y = np.ones((20, units), "float32")
            kfit.fit(model, x, y, batch_size=5, verbose=0, shuffle=False, strategy=chosen)
            ended.append(model)
        assert tiny.distance(*ended) < 1e-6
        made.append(strategy)
    kfit.fit(ended[0], x, y, verbose=0, strategy=made[0])  # the first one still works


def test_a_tensorflow_that_makes_them_otherwise_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    monkeypatch.delattr(type(strategy.extended), "_make_collective_ops_with_fallbacks")
    with pytest.raises(ImportError, match=f"TensorFlow {tf.__version__} makes the collectives"):
        kfit.Trainer(keras.Sequential(), strategy)
