"""Replicas that have no example, and replicas that cannot meet where XLA compiles a step."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kfit
from tests.exactness.cases.comparison import assert_equal_logs
from tests.exactness.cases.data import labels, numbers, positive
from tests.exactness.cases.models import sgd


class NeedsARow(layers.Layer):
    """Fails on a batch without one, as `Equalization` does and layers of users may."""

    def call(self, x: Any) -> Any:
        return x + 0.0 * x[0]

    def compute_mask(self, x: Any, mask: Any = None) -> Any:
        return mask


def that_needs_a_row() -> keras.Model:
    """A model in which all that replicas take together depends on which rows count."""
    keras.utils.set_random_seed(1)
    x = keras.Input((4,))
    features = layers.BatchNormalization(synchronized=True)(NeedsARow()(layers.Dense(6)(x)))
    steps = NeedsARow()(layers.Masking()(layers.Reshape((2, 3))(layers.ReLU()(features))))
    masked = layers.Dense(2, name="masked")(steps)
    model = keras.Model(x, [masked, layers.Dense(3, "softmax", name="classes")(features)])
    model.compile(
        sgd(),
        [keras.losses.MeanSquaredError("mean_with_sample_weight"), keras.losses.Dice()],
        metrics=[["mae"], ["accuracy", keras.metrics.AUC(name="auc")]],
        weighted_metrics=[["mse"], [keras.metrics.CategoricalCrossentropy()]],
    )
    return model


@pytest.mark.long
@pytest.mark.parametrize(("kind", "replicas"), [("arrays", 2), ("data_set", 2), ("distributed", 2)])
def test_layers_that_need_a_row_have_one_on_every_replica(
    tiny: Any, kind: str, replicas: int
) -> None:
    n, size = 21, 10  # of the last batch but one replica is left without an example
    x, classes = numbers(n, 4), np.eye(3, dtype="float32")[labels(n, 3)]
    y, weights = (numbers(n, 2, 2), classes), (positive(n, 2), positive(n))

    def made(strategy: kfit.distribute.Strategy | None) -> dict[str, Any]:
        if kind == "arrays":
            whole = {"x": x, "y": list(y), "sample_weight": list(weights)}
            return {**whole, "batch_size": size, "verbose": 0}
        ds = tf.data.Dataset.from_tensor_slices((x, y, weights)).batch(size)
        distributed = strategy is not None and kind == "distributed"
        return {"x": strategy.distribute_dataset(ds) if distributed else ds, "verbose": 0}

    one = that_needs_a_row()
    one.run_eagerly = True
    expected = one.fit(**made(None), shuffle=False, epochs=2).history
    trainer = kfit.Trainer(that_needs_a_row(), tiny.strategy(replicas))
    got = trainer.fit(**made(trainer.strategy), shuffle=False, epochs=2).history
    assert tiny.distance(one, trainer.model) < 1e-5
    assert_equal_logs(got, expected)
    assert_equal_logs(
        trainer.evaluate(**made(trainer.strategy), return_dict=True),
        one.evaluate(**made(None), return_dict=True),
    )
    data = x[:1] if kind == "arrays" else tf.data.Dataset.from_tensors(x[:1])
    expected = one.predict(x, verbose=0)
    for predicted, whole in zip(trainer.predict(data, verbose=0), expected, strict=True):
        np.testing.assert_allclose(predicted, whole[:1], atol=1e-5)


class AsksTheOthers(layers.Layer):
    """Adds the sum over the replicas, as TensorFlow's guide shows it."""

    def call(self, x: Any) -> Any:
        replica = tf.distribute.get_replica_context()
        return x if replica is None else x + replica.all_reduce("SUM", tf.reduce_mean(x))


@pytest.mark.parametrize(
    ("layer", "match"),
    [
        (
            layers.BatchNormalization(synchronized=True, name="norm"),
            r"`jit_compile=True` on several.*'norm'.*`jit_compile=False`, or.*`synchronized=False`",
        ),
        (AsksTheOthers(), r"(?s)AsksTheOthers.*`jit_compile=True` on several.*`jit_compile=False`"),
        (layers.Masking(), r"`jit_compile=True` on several.*masks.*`jit_compile=False`"),
        (None, r"`jit_compile=True` on several.*Dice.*`jit_compile=False`"),
    ],
    ids=["batch_normalization", "all_reduce", "mask", "dice"],
)
def test_what_xla_cannot_hold_is_told(tiny: Any, layer: Any, match: str) -> None:
    hidden = [] if layer is None else [layer]
    model = keras.Sequential([layers.Input((3, 4)), *hidden, layers.Dense(2)])
    model.compile("sgd", "dice" if layer is None else "mse", jit_compile=True)
    trainer = kfit.Trainer(model, tiny.strategy(2))
    with pytest.raises(ValueError, match=match):
        trainer.fit(numbers(6, 3, 4), numbers(6, 3, 2), batch_size=4, verbose=0)
    assert tiny.is_plain(model)
