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


class WithoutCall(keras.Model):
    """Only its training step calls its layer, which the first call builds."""

    compiled_with: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean((y - self.dense(keras.ops.mean(x, axis=1))) ** 2)
        weights = self.dense.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return {"loss": loss}


class WithAnotherCall(WithoutCall):
    """Its `call` takes something else than the data."""

    def call(self, inputs: dict[str, Any]) -> Any:
        return self.dense(inputs["rows"])


class OfBuiltLayers(WithoutCall):
    """Its layer is built, but only its training step updates the metrics of `compile`."""

    compiled_with = ("mae",)

    def __init__(self) -> None:
        super().__init__()
        self.dense.build((None, 3))

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        super().train_step(data)
        return self.compute_metrics(x, y, self.dense(keras.ops.mean(x, axis=1)))


class OfBuiltLayersWithAnotherCall(OfBuiltLayers):
    """The same, with a `call` that takes something else than the data."""

    def call(self, inputs: dict[str, Any]) -> Any:
        return self.dense(inputs["rows"])


@pytest.mark.parametrize(
    "kind", [WithoutCall, WithAnotherCall, OfBuiltLayers, OfBuiltLayersWithAnotherCall]
)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_what_the_first_step_builds(kind: Any, optimizer: str) -> None:
    trained = []
    for strategy in (None, kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        keras.utils.set_random_seed(1)
        model = kind()
        model.compile(optimizer, metrics=kind.compiled_with and list(kind.compiled_with))
        fixed = {"batch_size": BATCH_SIZE, "epochs": 2, "shuffle": False, "verbose": 0}
        if strategy is None:
            model.fit(*rows(), **fixed)
        else:
            kfit.fit(model, *rows(), **fixed, strategy=strategy)
        trained.append(model.get_weights())
    assert all(np.allclose(*pair, atol=1e-5) for pair in zip(*trained, strict=True))


class OfPairs(keras.Sequential):
    """Takes pairs of batches, as consistency training does, and no targets of its outputs."""

    def train_step(self, data: Any) -> dict[str, Any]:
        (x, _), (noisy, y) = data
        with tf.GradientTape() as tape:
            y_pred = self(noisy, training=True)
            loss = keras.ops.mean((y_pred - self(x)) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self.compute_metrics(x, y, y_pred)


class OfImages(keras.Sequential):
    """Takes no targets, but computes the metrics of `compile`."""

    def train_step(self, data: Any) -> dict[str, Any]:
        with tf.GradientTape() as tape:
            y_pred = self(data, training=True)
            loss = keras.ops.mean((y_pred[:, :1] - data) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self.compute_metrics(data, keras.ops.cast(data[:, 0] > 0, "int32"), y_pred)


@pytest.mark.parametrize("kind", [OfPairs, OfImages])
def test_metrics_get_the_targets_that_the_step_takes(kind: Any) -> None:
    x = np.random.default_rng(0).normal(size=(EXAMPLES, 3)).astype("float32")
    labels = (x[:, 0] > 0).astype("int32")
    pairs = ((x, labels), (x + 0.1, labels))
    data = tf.data.Dataset.from_tensor_slices(pairs if kind is OfPairs else x).batch(BATCH_SIZE)
    seen = []
    for strategy in (None, kfit.distribute.Mirrored(["CPU:0", "CPU:1"])):
        keras.utils.set_random_seed(1)
        model = kind([keras.Input((3,)), keras.layers.Dense(3, "softmax")])
        model.compile("sgd", metrics=["accuracy"])
        if strategy is None:
            seen.append(model.fit(data, epochs=2, verbose=0).history)
        else:
            seen.append(kfit.fit(model, data, epochs=2, verbose=0, strategy=strategy).history)
    assert seen[0]["accuracy"] == pytest.approx(seen[1]["accuracy"])
    assert seen[0]["accuracy"][0] > 0
