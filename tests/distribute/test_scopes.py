"""Models that were made in the scope of one strategy, trained on another one."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.factory import tell_choice

FIXED = {"batch_size": 20, "shuffle": False, "verbose": 0}


def mirrored(replicas: int = 2) -> tf.distribute.MirroredStrategy:
    devices = [f"CPU:{index}" for index in range(replicas)]
    return tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())


def one_device() -> tf.distribute.OneDeviceStrategy:
    return tf.distribute.OneDeviceStrategy("CPU:1")


def made(scope: Any = None) -> Any:
    with nullcontext() if scope is None else scope.scope():
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((4,)),
                keras.layers.Dense(8, activation="tanh"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.Dense(3),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, metrics=["accuracy"])
    return model


@pytest.mark.long
@pytest.mark.parametrize(
    ("scope", "target", "trained"),
    [
        pytest.param(mirrored, "one_device", True, marks=pytest.mark.long),
        pytest.param(mirrored, "mirrored", False, marks=pytest.mark.long),
        pytest.param(mirrored, "auto", False, marks=pytest.mark.long),
        (one_device, "mirrored", False),
        pytest.param(mirrored, "mirrored", True, marks=pytest.mark.long),
        pytest.param(mirrored, "auto", True, marks=pytest.mark.long),
        pytest.param(one_device, "one_device", True, marks=pytest.mark.long),
        pytest.param(one_device, "mirrored", True, marks=pytest.mark.long),
        pytest.param(one_device, "auto", True, marks=pytest.mark.long),
    ],
)
def test_a_model_of_another_scope_is_trained_everywhere(
    tiny: Any, tmp_path: Path, scope: Any, target: str, trained: bool
) -> None:
    x, y = tiny.data(50)
    strategy = scope()
    model, expected = made(strategy), made()
    if trained:
        model.fit(x[:40], y[:40], **FIXED)
    expected.set_weights(model.get_weights())
    expected.optimizer.build(expected.trainable_variables)
    if model.optimizer.built:
        values = [variable.numpy() for variable in model.optimizer.variables]
        for variable, value in zip(expected.optimizer.variables, values, strict=True):
            variable.assign(value)
    trainer = kfit.Trainer(model, tiny.strategy(3) if target == "mirrored" else target)
    adopted = strategy.num_replicas_in_sync
    assert trainer.num_replicas == {"one_device": 1, "mirrored": 3, "auto": adopted}[target]
    for _ in range(2):
        trainer.fit(x, y, **FIXED)
        expected.fit(x, y, **FIXED)
    assert tiny.distance(model, expected) < 1e-5
    np.testing.assert_allclose(
        trainer.predict(x, verbose=0), expected.predict(x, verbose=0), atol=1e-5
    )
    scores = expected.evaluate(x, y, verbose=0)
    np.testing.assert_allclose(trainer.evaluate(x, y, verbose=0), scores, rtol=1e-4)
    trainer.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert tiny.distance(loaded, expected) < 1e-5
    assert int(loaded.optimizer.iterations) == int(expected.optimizer.iterations)
    if target != "auto":
        # It has left its scope: Keras goes on with the variables that were trained.
        assert tiny.is_plain(model)
        for each in (model, expected):
            each.fit(x, y, **FIXED)
        assert tiny.distance(model, expected) < 1e-5


def test_auto_says_that_it_takes_the_strategy_of_the_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    strategy = mirrored()
    tell_choice.cache_clear()
    assert kfit.Trainer(made(strategy)).strategy.tf_strategy is strategy
    told = "'auto' chose 'mirrored': the model was made in the scope of a MirroredStrategy."
    assert told in capsys.readouterr().out


@pytest.mark.long
def test_a_trainer_sees_that_another_one_moved_the_variables(tiny: Any) -> None:
    x, y = tiny.data(50)
    strategy = mirrored()
    model, expected = made(strategy), made()
    first, second = kfit.Trainer(model, strategy), kfit.Trainer(model, "one_device")
    for trainer in (first, second, first):
        trainer.fit(x, y, **FIXED)
        expected.fit(x, y, **FIXED)
        scores = expected.evaluate(x, y, verbose=0)
        np.testing.assert_allclose(trainer.evaluate(x, y, verbose=0), scores, rtol=1e-4)
        assert tiny.distance(model, expected) < 1e-5


def test_a_call_in_the_scope_of_a_strategy(tiny: Any) -> None:
    x, y = tiny.data(50)
    strategy = mirrored()
    model, expected = made(), made()
    outside = kfit.Trainer(made(), "one_device")
    with strategy.scope():
        kfit.fit(model, x, y, **FIXED)
        for call in (
            lambda: kfit.fit(made(), x, y, strategy="one_device", **FIXED),
            lambda: kfit.fit(made(), x, y, strategy=mirrored(), **FIXED),
            lambda: outside.fit(x, y, **FIXED),
        ):
            with pytest.raises(ValueError, match="called in the scope of a MirroredStrategy"):
                call()
    expected.fit(x, y, **FIXED)
    assert tiny.distance(model, expected) < 1e-5


@pytest.mark.long
def test_a_seed_that_was_made_in_the_scope_of_another_strategy(tiny: Any) -> None:
    """Keras has one seed for whoever brings none; it belongs to the scope of the first draw."""
    x, y = tiny.data(16)
    first, second = mirrored(), mirrored()
    with first.scope():
        earlier = tiny.model()
    with second.scope():
        later = tiny.model()  # and seeds Keras: nobody has drawn from its seed yet
    with first.scope():
        kfit.fit(earlier, x, y, batch_size=8, verbose=0)
    with second.scope():
        kfit.fit(later, x, y, batch_size=8, verbose=0)
    with first.scope():
        kfit.fit(earlier, x, y, batch_size=8, verbose=0)
    for strategy in (second, "one_device"):
        kfit.fit(later, x, y, batch_size=8, strategy=strategy, verbose=0)
    kfit.fit(earlier, x, y, batch_size=8, verbose=0)
