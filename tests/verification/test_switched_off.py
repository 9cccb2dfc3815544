"""Layers that draw random numbers are switched off, to compare the rest of a model."""

from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.verification.switched_off import has_training, without_draws

L = keras.layers


class Noise(L.Layer):
    """Adds noise whenever it is called."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, x: Any) -> Any:
        return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)


class Draws(L.Layer):
    """Draws in all ways that are known."""

    def call(self, x: Any, training: bool = False) -> Any:
        shape = keras.ops.shape(x)
        drawn = [
            keras.random.normal(shape),
            keras.random.truncated_normal(shape),
            keras.random.uniform(shape, -1.0, 1.0),
            keras.ops.cast(keras.random.randint(shape, 0, 9), "float32"),
            keras.random.dropout(keras.ops.ones_like(x), 0.5),
        ]
        return keras.ops.stack([*drawn, keras.ops.full_like(x, float(training))])


@pytest.mark.long
def test_a_layer_without_the_argument_training(tiny: Any) -> None:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), L.Dense(8), Noise(name="noise"), L.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x, y = tiny.data(37)
    found = kfit.Trainer(model, "one_device").verify(x, y, batch_size=15)
    assert found.verdict == "equal but for random draws", str(found)
    assert [cause.name for cause in found.causes] == ["noise"]
    assert found.notes == ("The table was made with 'noise' drawing the same for all examples.",)


def test_draws_are_equal_for_all_examples() -> None:
    layer, other = Draws(), Draws()
    assert has_training(layer)
    assert not has_training(Noise())
    with without_draws([layer]):
        few, more = (np.asarray(layer(np.ones((n, 40)), training=True)) for n in (2, 3))
        np.testing.assert_array_equal(few, more[:, :2])
        np.testing.assert_array_equal(more[:, 0], more[:, 2])
        assert few.std(axis=2)[:5].min() > 0
        assert few[5].max() == 0.0
        kept = np.asarray(other(np.ones((2, 40))))
        assert (kept[0, 0] != kept[0, 1]).any()
    assert np.asarray(layer(np.ones((2, 40)), training=True))[5].min() == 1.0


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_any_shape_may_be_drawn(shape: tuple[int, ...]) -> None:
    class OfShape(L.Layer):
        def call(self, x: Any) -> Any:
            return keras.random.normal(shape) + 0.0 * keras.ops.sum(x)

    layer = OfShape()
    with without_draws([layer]):
        drawn = np.asarray(layer(np.ones((1, 1))))
    assert drawn.shape == shape
