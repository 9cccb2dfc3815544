"""What a program changes in a model between two calls, and which graphs follow it."""

import types
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit

FIXED = {"batch_size": 8, "shuffle": False, "verbose": 0}


def own_step(self: keras.Model, data: Any) -> dict[str, Any]:
    x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        loss = self.compute_loss(x, y, self(x, training=True))
        scaled = self.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, self.trainable_weights)
    self.optimizer.apply(gradients, self.trainable_weights)
    self.metrics[0].update_state(loss)
    return {"loss": self.metrics[0].result(), "twice": 2 * loss}


def test_a_step_that_is_put_on_the_model_itself_is_its_own(tiny: Any) -> None:
    x, y = tiny.data(16)

    def program(fit: Any) -> Any:
        model = tiny.model(metrics=[])
        fit(model)
        model.train_step = types.MethodType(own_step, model)
        model.compile(model.optimizer, model.loss)
        own = fit(model)
        del model.train_step
        model.compile(model.optimizer, model.loss)
        return [own, fit(model)]

    def on_two(model: Any) -> Any:
        return kfit.fit(model, x, y, strategy=strategy, **FIXED).history

    strategy = tiny.strategy(2)
    expected = program(lambda model: model.fit(x, y, **FIXED).history)
    got = program(on_two)
    assert [set(h) for h in got] == [set(h) for h in expected] == [{"loss", "twice"}, {"loss"}]
    # The last batch's own loss is logged.
    for name, values in expected[0].items():
        assert got[0][name] == pytest.approx(values, abs=1e-5)
    assert np.allclose(got[1]["loss"], expected[1]["loss"], atol=1e-5)
