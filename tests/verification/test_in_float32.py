"""`Trainer.verify` compares models of 16 bits in float32, whose rounding hides less."""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.verification.in_float32 import coarse_dtypes, in_float32

L = keras.layers
PER_EXAMPLE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class HasItsDtype(L.Layer):
    """Works in one dtype only."""

    def call(self, x: Any) -> Any:
        return tf.cast(tf.cast(x, tf.float32), tf.bfloat16) + tf.ones_like(x)


@pytest.fixture(params=["mixed_bfloat16"])
def policy(request: Any) -> Iterator[str]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    yield request.param
    keras.config.set_dtype_policy(before)


def made(layer: Any) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), L.Dense(8, activation="tanh"), layer, L.Dense(3)]
    model = keras.Sequential(layers)
    model.compile("adam", PER_EXAMPLE, metrics=["accuracy"])
    return model


def verified(model: Any, tiny: Any) -> Any:
    x, y = tiny.data(37)
    return kfit.Trainer(model, "one_device").verify(x, y, batch_size=15)


@pytest.mark.long
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"], indirect=True)
def test_rounding_hides_no_batch_normalization(policy: str, tiny: Any) -> None:
    model = made(L.BatchNormalization(name="culprit"))
    found = verified(model, tiny)
    assert found.verdict == "differs", str(found)
    assert [cause.name for cause in found.causes] == ["culprit"]
    assert "It was compared in float32" in found.notes[0]
    assert {layer.dtype_policy.name for layer in model.layers} == {policy}


@pytest.mark.parametrize(
    "policy", [pytest.param("mixed_bfloat16", marks=pytest.mark.long)], indirect=True
)
def test_dropout_is_switched_off_in_16_bits(policy: str, tiny: Any) -> None:
    assert verified(made(L.Dropout(0.5)), tiny).verdict == "equal but for random draws"


def test_a_model_that_needs_its_dtype_is_compared_in_it(policy: str, tiny: Any) -> None:
    found = verified(made(HasItsDtype()), tiny)
    assert found.verdict == "equal", str(found)
    assert "compared in 'bfloat16', whose rounding hides small differences" in found.notes[0]


def test_dtypes_are_changed_and_given_back() -> None:
    shared = keras.dtype_policies.DTypePolicyMap(default_policy="mixed_float16")
    model = keras.Sequential(
        [
            keras.Input((4,)),
            L.Dense(2, dtype="float64"),
            L.Dense(2, dtype="mixed_bfloat16"),
            L.Dense(2, dtype=shared),
        ]
    )
    policies = [layer.dtype_policy for layer in model.layers]
    assert coarse_dtypes(model) == ["bfloat16", "float16"]
    with in_float32(model):
        assert coarse_dtypes(model) == []
        assert [layer.compute_dtype for layer in model.layers] == ["float64", "float32", "float32"]
        assert np.asarray(model(np.ones((1, 4)))).dtype == "float32"
    assert [layer.dtype_policy for layer in model.layers] == policies
    assert not len(shared)
