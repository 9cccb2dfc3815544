"""Results of metrics that a step reads before it changes the metrics again, on several replicas."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import metrics, ops

import kfit
from tests.sweeps import only

X = np.random.RandomState(0).normal(size=(7, 4)).astype("float32")


class Returns(keras.Model):
    """Returns what `values` makes of its metrics and its predictions."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.total = metrics.Mean(name="total")

    def train_step(self, batch: Any) -> dict[str, Any]:
        y_pred = self(batch[0], training=True)
        self.total.update_state(y_pred)
        return self.values(y_pred)

    def values(self, y_pred: Any) -> dict[str, Any]:
        raise NotImplementedError


class ReadsInBetween(Returns):
    """Takes one metric for several losses, and reads results before the next update."""

    def values(self, y_pred: Any) -> dict[str, Any]:
        self.total.reset_state()
        self.total.update_state(ops.square(y_pred))
        first = self.total.result()
        self.total.update_state(y_pred)
        both = self.total.result()
        self.total.reset_state()
        self.total.update_state(ops.abs(y_pred))
        if tf.executing_eagerly():  # where the name tells which metric it is
            return {"total": first}
        return {"first": first, "both": both, "last": self.total.result()}


@pytest.mark.parametrize("eagerly", only([False], [False, True]))
@pytest.mark.parametrize("batch_size", only([6], [4, 6]))  # one replica has no last example of 7
def test_each_result_is_that_of_the_moment_at_which_it_was_read(
    tiny: Any, batch_size: int, eagerly: bool
) -> None:
    def logged(strategy: Any) -> Any:
        keras.utils.set_random_seed(1)
        inputs = keras.Input((4,))
        model = ReadsInBetween(inputs, keras.layers.Dense(1)(inputs))
        model.compile(keras.optimizers.SGD(0.1), run_eagerly=eagerly)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*The model's step.*")
            trainer = kfit.Trainer(model, strategy)
            return trainer.fit(X, X[:, :1], batch_size=batch_size, shuffle=False, verbose=0).history

    expected, got = logged("one_device"), logged(tiny.strategy(2))
    assert list(got) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values, rtol=1e-5, err_msg=name)


class ChangesInBranch(Returns):
    """Reads a result before the metric is updated again, which a branch of the graph does."""

    def values(self, y_pred: Any) -> dict[str, Any]:
        read = self.total.result()

        def update() -> Any:
            self.total.update_state(2 * y_pred)
            return tf.constant(0)

        tf.cond(self.optimizer.iterations.value >= 0, update, lambda: 0)
        return {"read": read}


def test_a_result_that_was_read_before_a_branch_is_warned_of_by_name(tiny: Any) -> None:
    inputs = keras.Input((4,))
    model = ChangesInBranch(inputs, keras.layers.Dense(1)(inputs))
    model.compile(keras.optimizers.SGD(0.1))
    with pytest.warns(UserWarning, match="returns 'read', a result of the metric 'total', and"):
        kfit.Trainer(model, tiny.strategy(2)).fit(X, X[:, :1], batch_size=6, verbose=0)
