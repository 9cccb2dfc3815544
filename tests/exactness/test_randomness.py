"""Replicas draw numbers of their own, and a rerun the same ones again."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, losses, ops

import kfit
from tests.exactness.cases.data import numbers
from tests.exactness.cases.models import sgd


class DropsByKerasItself(layers.Layer):
    """Drops examples by what `keras.random` draws where it is given no seed."""

    def call(self, x: Any, training: bool = False) -> Any:
        kept = keras.random.uniform((ops.shape(x)[0], 1)) < 0.5
        return ops.where(kept, x, 0.0) if training else x


def dropped_rows(
    tiny: Any, replicas: int, seed: int, epochs: int = 1, layer: Any = None
) -> np.ndarray:
    """Which of 64 examples a layer let through: only those have a gradient for their own weight."""
    keras.utils.set_random_seed(seed)
    layer = layers.Dropout(0.5, noise_shape=(None, 1)) if layer is None else layer()
    dense = layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    model = keras.Sequential([layers.Input((64,)), layer, dense])
    model.compile(sgd(), losses.MeanSquaredError(reduction="sum"))
    trainer = kfit.Trainer(model, tiny.strategy(replicas))
    x, y = np.eye(64, dtype="float32"), np.ones((64, 1), "float32")
    trainer.fit(x, y, batch_size=64, shuffle=False, verbose=0, epochs=epochs)
    return model.get_weights()[0][:, 0] != 0


@pytest.mark.parametrize(
    ("replicas", "layer"),
    [(2, None), pytest.param(4, None, marks=pytest.mark.long), (2, DropsByKerasItself)],
    ids=str,
)
def test_replicas_draw_different_numbers_and_a_rerun_the_same(
    tiny: Any, replicas: int, layer: Any
) -> None:
    kept = dropped_rows(tiny, replicas, 3, layer=layer)
    masks = kept.reshape(replicas, -1)
    assert len({tuple(mask) for mask in masks}) == replicas
    assert 16 < kept.sum() < 48
    np.testing.assert_array_equal(dropped_rows(tiny, replicas, 3, layer=layer), kept)
    assert not np.array_equal(dropped_rows(tiny, replicas, 4, layer=layer), kept)


AUGMENTATIONS = [
    layers.RandomFlip,
    lambda: layers.RandomRotation(0.5),
    lambda: layers.RandomZoom(0.5),
    lambda: layers.RandomTranslation(0.5, 0.5),
    lambda: layers.RandomContrast(0.5),
    lambda: layers.RandomBrightness(0.5),
    lambda: layers.GaussianNoise(0.5),
    lambda: layers.GaussianDropout(0.5),
    lambda: layers.SpatialDropout2D(0.5),
]


class AugmentsAll(keras.Model):
    """Shows what each augmentation makes of a batch, as parts of the numbers a step returns."""

    def __init__(self) -> None:
        super().__init__()
        self.augmentations = [make() for make in AUGMENTATIONS]
        self.dense = layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(ops.mean(x, (1, 2)))

    def train_step(self, batch: Any) -> dict[str, Any]:
        index = tf.distribute.get_replica_context().replica_id_in_sync_group
        shown = {}
        for number, layer in enumerate(self.augmentations):
            seen = ops.sum(layer(batch[0], training=True) * numbers(8, 8, 8, 1))
            for replica in range(2):
                # A replica returns its part of a scalar, and the other one's part is nothing.
                shown[f"{number}_{replica}"] = seen * tf.cast(index == replica, tf.float32)
        return shown


@pytest.mark.long
def test_replicas_augment_differently_and_a_rerun_alike(tiny: Any) -> None:
    def shown(seed: int) -> np.ndarray:
        keras.utils.set_random_seed(seed)
        model = AugmentsAll()
        model.compile(sgd(), "mse")
        images = np.repeat(numbers(1, 8, 8, 1), 8, axis=0)
        # Twice 8 alike: what the replicas make of them differs by their draws alone.
        history = kfit.Trainer(model, tiny.strategy(2)).fit(
            np.concatenate([images, images]), np.zeros((16, 1)), batch_size=16, verbose=0
        )
        return np.array(list(history.history.values()))[:, 0].reshape(-1, 2)

    first = shown(1)
    assert (np.abs(first[:, 0] - first[:, 1]) > 1e-3).all(), first
    np.testing.assert_array_equal(shown(1), first)


def test_random_numbers_go_on_over_the_epochs(tiny: Any) -> None:
    once, twice = dropped_rows(tiny, 2, 3), dropped_rows(tiny, 2, 3, epochs=2)
    assert twice.sum() > once.sum()


class DrawsIfTrained(layers.Layer):
    """Adds numbers without a seed, but only in training."""

    def call(self, x: Any, training: bool = False) -> Any:
        return x + 0.5 * keras.random.normal(ops.shape(x)) if training else x


@pytest.mark.long
def test_the_last_seed_of_the_program_decides_what_is_drawn(tiny: Any) -> None:
    losses_of = []
    for first in (5, 6):
        keras.utils.set_random_seed(first)
        model = keras.Sequential([layers.Input((4,)), DrawsIfTrained(), layers.Dense(1)])
        model.compile(sgd(), "mse")
        model.set_weights([np.ones((4, 1)), np.zeros(1)])
        trainer = kfit.Trainer(model, tiny.strategy(2))
        x = numbers(12, 4)
        trainer.evaluate(x, x[:, :1], verbose=0)  # draws nothing
        keras.utils.set_random_seed(2)
        losses_of.append(trainer.fit(x, x[:, :1], batch_size=6, verbose=0).history["loss"])
    assert losses_of[0] == losses_of[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("clears", "name"),
    list(
        itertools.product(
            [True, False], ["on_epoch_begin", "on_train_batch_begin", "on_test_begin"]
        )
    ),
    ids=lambda value: {True: "clears", False: "seeds"}.get(value),
)
def test_a_hook_may_seed_or_clear_keras(tiny: Any, name: str, clears: bool) -> None:
    def change(*_: Any, **__: Any) -> None:
        keras.backend.clear_session() if clears else keras.utils.set_random_seed(5)

    def trained(replicas: int) -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([layers.Input((4,)), layers.Dropout(0.0), layers.Dense(1)])
        model.compile(sgd(), "mse")
        trainer = kfit.Trainer(model, tiny.strategy(replicas))
        x = numbers(11, 4)
        for _ in range(2):
            hook = keras.callbacks.Callback()
            setattr(hook, name, change)
            fit: dict[str, Any] = {"batch_size": 4, "epochs": 2, "shuffle": False, "verbose": 0}
            trainer.fit(x, x[:, :1], validation_data=(x, x[:, :1]), callbacks=[hook], **fit)
            trainer.evaluate(x, x[:, :1], batch_size=5, verbose=0)  # traced after the change
        return model

    assert tiny.distance(trained(1), trained(2)) < 1e-5
