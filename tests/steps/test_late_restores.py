"""A model that kfit builds gets the values of a checkpoint that was restored before."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from tests.sweeps import only


class Nested(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = keras.layers.Dense(3, activation="tanh")
        self.head = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.head(self.hidden(x))


class OwnStep(Nested):
    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def sequential() -> keras.Model:
    return keras.Sequential([keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)])


def compiled(make: Any) -> keras.Model:
    model: keras.Model = make()
    model.compile(keras.optimizers.Adam(0.1), "mse")
    return model


@pytest.mark.parametrize(
    ("make", "replicas"),
    only(
        [(sequential, 2), (Nested, 2)],
        [(make, replicas) for make in (sequential, Nested, OwnStep) for replicas in (1, 2)],
    ),
)
def test_what_is_built_gets_the_values_of_the_checkpoint(
    tiny: Any, tmp_path: Path, make: Any, replicas: int
) -> None:
    x, y = np.random.default_rng(0).normal(size=(2, 12, 4)).astype("float32")
    y = y[:, :1]
    options = {"batch_size": 4, "verbose": 0, "strategy": tiny.strategy(replicas)}
    first = compiled(make)
    kfit.fit(first, x, y, **options)
    saved = tf.train.Checkpoint(model=first, optimizer=first.optimizer).save(str(tmp_path / "of"))

    def predicted(model: keras.Model) -> Any:
        return kfit.predict(model, x, batch_size=4, strategy=options["strategy"], verbose=0)

    expected = predicted(first)

    def restored() -> tuple[keras.Model, Any]:
        model = compiled(make)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        return model, checkpoint.restore(saved)

    trained, status = restored()
    kfit.fit(trained, x, y, **options, shuffle=False)
    kfit.fit(first, x, y, **options, shuffle=False)
    status.assert_existing_objects_matched()
    np.testing.assert_allclose(predicted(restored()[0]), expected, rtol=1e-5)
    assert len(trained.variables) == len(first.variables)
    pairs = [
        *zip(trained.variables, first.variables, strict=True),
        *zip(trained.optimizer.variables[2:], first.optimizer.variables[2:], strict=True),
    ]
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
