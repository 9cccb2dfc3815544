"""A model is built by shapes alone: of any number of examples, or of the number that it needs."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit

EXAMPLES, BATCH_SIZE = 16, 4


class TakesStaticSize(keras.layers.Layer):
    """A layer that cannot be called with an unknown number of examples."""

    def call(self, x: Any) -> Any:
        return keras.ops.reshape(x, (x.shape[0], -1))


def static_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    x = keras.Input((2, 3), batch_size=BATCH_SIZE)
    model = keras.Model(x, keras.layers.Dense(1)(TakesStaticSize()(x)))
    model.compile("sgd", "mse", metrics=["mae"])
    return model


def rows() -> tuple[Any, Any]:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 2, 3)).astype("float32")
    return x, x.sum((1, 2), keepdims=True)[:, 0]


def as_arrays() -> tuple[Any, dict[str, Any]]:
    return rows(), {"batch_size": BATCH_SIZE}


def as_pipeline() -> tuple[Any, dict[str, Any]]:
    data = tf.data.Dataset.from_tensor_slices(rows())
    return (data.batch(BATCH_SIZE, drop_remainder=True),), {}


def as_weighted_arrays() -> tuple[Any, dict[str, Any]]:
    weights = np.linspace(0, 1, EXAMPLES, dtype="float32")
    return rows(), {"batch_size": BATCH_SIZE, "sample_weight": weights}


@pytest.mark.parametrize("data", [as_arrays, as_pipeline, as_weighted_arrays])
def test_a_layer_may_take_the_size_of_equal_batches(data: Any) -> None:
    parts, options = data()
    plain, model = static_model(), static_model()
    trainer = kfit.Trainer(model, "one_device")
    fit = {**options, "epochs": 2, "shuffle": False, "verbose": 0}
    expected, actual = plain.fit(*parts, **fit).history, trainer.fit(*parts, **fit).history
    assert actual == {name: pytest.approx(values) for name, values in expected.items()}
    alone = static_model()
    options.update(verbose=0, return_dict=True)
    expected = static_model().evaluate(*parts, **options)
    assert kfit.evaluate(alone, *parts, strategy="one_device", **options) == pytest.approx(expected)


def test_on_replicas_the_size_is_named() -> None:
    trainer = kfit.Trainer(static_model(), kfit.distribute.Mirrored(["CPU:0", "CPU:1"]))
    with pytest.raises(ValueError, match=r"fails on 2 replicas.*keras\.ops\.shape\(x\)\[0\]"):
        trainer.fit(*rows(), batch_size=BATCH_SIZE, verbose=0)
