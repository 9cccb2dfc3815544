"""A step that changes gradients before their sum over the replicas is warned of."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit

X = np.random.RandomState(0).normal(size=(8, 4)).astype("float32")


class Step(keras.Sequential):
    clips = False

    def train_step(self, batch: Any) -> dict[str, Any]:
        x, y = batch
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        grads = [0.5 * grad for grad in tape.gradient(loss, self.trainable_variables)]
        if self.clips:
            grads, _ = tf.clip_by_global_norm(grads, 0.1)
        self.optimizer.apply(grads, self.trainable_variables)
        return self.compute_metrics(x, y, y_pred)


class Doubles(keras.layers.Layer):
    """Code of the user's own in a model whose step is Keras' own."""

    def call(self, x: Any) -> Any:
        return 2 * x


class Clips(Step):
    clips = True


@pytest.mark.parametrize(("cls", "warned"), [(keras.Sequential, 0), (Step, 0), (Clips, 1)])
def test_only_clipping_is_warned_of(tiny: Any, cls: Any, warned: int, recwarn: Any) -> None:
    layers = [keras.Input((4,)), keras.layers.Dense(3), Doubles(), keras.layers.Dense(1)]
    model = cls(layers)
    model.compile(keras.optimizers.SGD(0.1), "mse")
    kfit.Trainer(model, tiny.strategy(2)).fit(X, X[:, :1], batch_size=8, verbose=0)

    said = {str(each.message).partition(",")[0] for each in recwarn}
    what = "`train_step` changes gradients before they are summed over the replicas"
    assert said == ({what} if warned else set())
