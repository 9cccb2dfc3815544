"""`fit(..., profile=True)`: what it measures, and that it changes nothing."""

import random
from typing import Any

import keras
import numpy as np
import pytest

import kfit
from kfit.distribute.parameter_server import ParameterServer
from kfit.inputs import as_batches
from kfit.report.one_batch import first_rows
from kfit.training.arguments import check_profile

SHAPES = ("forward pass", "backward pass", "metrics", "optimizer update")


def model() -> Any:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    made = keras.Sequential(
        [keras.Input((4,)), layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.3)]
    )
    made.add(layers.Dense(3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    made.compile("adam", loss, metrics=["accuracy"])
    return made


def state_of(trainer: Any) -> list[np.ndarray]:
    model = trainer.model
    return [each.numpy() for each in (*model.variables, *model.optimizer.variables)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_profiled_training_is_the_same_to_the_last_bit(
    tiny: Any, replicas: int, capfd: Any
) -> None:
    x, y = tiny.data(50)
    states, drawn = [], []
    for profile in (False, True):
        trainer = kfit.Trainer(model(), strategy=tiny.strategy(replicas), seed=1)
        trainer.fit(x, y, 16, 2, 0, profile=profile)
        trainer.fit(x, y, 16, 1, 0)  # what follows is the same, too
        states.append(state_of(trainer))
        drawn.append((random.random(), np.random.random()))
        if profile:
            assert capfd.readouterr().out == ""
    assert drawn[0] == drawn[1]
    for one, other in zip(*states, strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_parts_of_a_step_are_in_the_report(tiny: Any, capfd: Any) -> None:
    x, y = tiny.data(40)

    def batches() -> Any:
        while True:
            yield x[:8], y[:8]

    trainer = kfit.Trainer(model(), strategy="one_device")
    trainer.fit(batches(), steps_per_epoch=5, verbose=2, profile=True)
    report = trainer.report()
    assert set(report.step_parts) == {*SHAPES, "overhead of a graph call"}
    assert all(seconds >= 0 for seconds in report.step_parts.values())
    assert report.step_parts["forward pass"] > 0
    # The measurement is no part of the time of the training.
    assert sum(report.phases.values()) == pytest.approx(report.seconds)
    assert report.steps == 5
    assert "one step:" in capfd.readouterr().out


def test_an_own_train_step_is_one_part(tiny: Any) -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            return super().train_step(data)

    x, y = tiny.data(40)
    trainer = kfit.Trainer(tiny.model(cls=Own), strategy="one_device")
    trainer.fit(x, y, 8, verbose=0, profile=True)
    assert set(trainer.report().step_parts) == {"whole step", "overhead of a graph call"}


def test_batches_without_fixed_shapes_have_no_stand_in(tiny: Any) -> None:
    def batches() -> Any:
        for length in (3, 4, 5):
            yield np.zeros((2, length)), np.zeros(2)

    strategy = tiny.strategy(1)
    made = as_batches(batches(), None, None, strategy=strategy)
    assert first_rows(made, (None, None, None), 2) is None
    made.close()
    x, y = tiny.data(10)
    made = as_batches(x, y, None, strategy=strategy, batch_size=4)
    rows = first_rows(made, (x, y, None), 4)
    assert rows is not None
    np.testing.assert_array_equal(rows[0], x[:4])
    assert rows[2] is None


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="`profile` must be True or False"):
        check_profile("yes", kfit.distribute.OneDevice())
    with pytest.raises(ValueError, match="parameter_server"):
        check_profile(True, ParameterServer.__new__(ParameterServer))
