"""Types of more and of fewer bits than float32: equal to one device as far as they allow."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, losses

import kfit
from tests.exactness.cases.data import regression, rng
from tests.exactness.cases.models import sgd
from tests.exactness.cases.precision import mixed_float16


@pytest.mark.long
def test_float64_is_exact_to_float64(tiny: Any) -> None:
    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        x = layers.Input((4,), dtype="float64")
        norm = layers.BatchNormalization(synchronized=True, dtype="float64")
        hidden = norm(layers.Dense(5, "tanh", dtype="float64")(x))
        taken = {"mean": "mse", "sum": losses.MeanAbsoluteError(reduction="sum"), "dice": "dice"}
        names = {name: layers.Dense(2, "sigmoid", dtype="float64", name=name) for name in taken}
        model = keras.Model(x, {name: layer(hidden) for name, layer in names.items()})
        model.compile(sgd(global_clipnorm=1.0), loss=taken)
        return model

    keras.config.set_floatx("float64")
    try:
        x, y = rng().normal(size=(21, 4)), rng().uniform(size=(21, 2))
        fixed = {"batch_size": 8, "shuffle": False, "verbose": 0}
        one, many = made(), made()
        one.run_eagerly = True
        weighted = {"sample_weight": dict.fromkeys(["mean", "sum", "dice"], y[:, 0])}
        data = x, dict.fromkeys(["mean", "sum", "dice"], y)
        expected = one.fit(*data, **fixed, **weighted).history["loss"]
        got = kfit.Trainer(many, tiny.strategy(3)).fit(*data, **fixed, **weighted).history["loss"]
    finally:
        keras.config.set_floatx("float32")
    assert tiny.distance(one, many) < 1e-14
    assert got == pytest.approx(expected, rel=1e-14)


@pytest.mark.long
@pytest.mark.parametrize("window", [2, None])
def test_float8_takes_the_largest_numbers_of_all_replicas(tiny: Any, window: int | None) -> None:
    def made() -> keras.Model:
        keras.utils.set_random_seed(1)
        policy = keras.dtype_policies.QuantizedFloat8DTypePolicy("float8", "float32", 6)
        model = keras.Sequential([layers.Input((4,)), layers.Dense(6, "tanh", dtype=policy)])
        model.add(layers.Dense(2))
        model.compile(sgd(gradient_accumulation_steps=window), "mse")
        return model

    one, many = made(), made()
    fixed = {"batch_size": 8, "shuffle": False, "verbose": 0, "epochs": 2}
    expected = one.fit(*regression(21), **fixed).history["loss"]
    got = kfit.Trainer(many, tiny.strategy(3)).fit(*regression(21), **fixed).history["loss"]
    # What is rounded the other way is off by an eighth, and so are the gradients of a few.
    assert got == pytest.approx(expected, rel=1e-3)
    for largest, wanted in zip(many.variables, one.variables, strict=True):
        if largest.overwrite_with_gradient:
            np.testing.assert_allclose(largest, wanted, rtol=1e-2, err_msg=wanted.path)


def test_mixed_float16_equals_one_device_as_far_as_it_can(tiny: Any) -> None:
    fixed = {"batch_size": 20, "shuffle": False, "verbose": 0, "epochs": 3}

    def made() -> tuple[keras.Model, Any]:
        keras.utils.set_random_seed(1)
        return mixed_float16(101)

    (one, data), (many, _) = made(), made()
    expected = one.fit(*data, **fixed).history["loss"]
    got = kfit.Trainer(many, tiny.strategy(3)).fit(*data, **fixed).history["loss"]
    assert float(one.optimizer.dynamic_scale) == float(many.optimizer.dynamic_scale)
    assert got == pytest.approx(expected, rel=1e-2)
    assert tiny.distance(one, many) < 2e-2
