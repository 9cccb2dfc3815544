"""`fit(..., profile=True)`: what it measures, and that it changes nothing."""

import itertools
import random
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import kfit
from kfit.distribute.parameter_server import ParameterServer
from kfit.inputs import as_batches
from kfit.report.one_batch import first_batch
from kfit.training.arguments import check_profile
from tests.sweeps import only, sweep

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


@pytest.mark.long
@pytest.mark.parametrize("replicas", sweep([2, 1]))
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


@pytest.mark.parametrize(
    ("kind", "replicas"),
    only(
        [("arrays", 1), ("pipeline", 2)],
        itertools.product(["arrays", "pipeline", "generator", "py_dataset"], [1, 2]),
    ),
)
def test_an_own_train_step_gets_what_it_gets_in_training(
    tiny: Any, kind: str, replicas: int
) -> None:
    """Its batches are `(x, y)`, where a step on one batch would get `(x, y, None)`."""

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(3)

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs["a"])

        def train_step(self, data: Any) -> Any:
            x, y = data
            return super().train_step((x, y))

    class Rows(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> Any:
            return {"a": x[:8]}, y[:8]

    x, y = tiny.data(40)
    data: Any = {
        "arrays": lambda: ({"a": x}, y, 8),
        "pipeline": lambda: (tf.data.Dataset.from_tensor_slices(({"a": x}, y)).batch(8),),
        "generator": lambda: ((({"a": x[:8]}, y[:8]) for _ in range(5)),),
        "py_dataset": lambda: (Rows(),),
    }[kind]()
    made = Own()
    made.compile("sgd", "sparse_categorical_crossentropy")
    trainer = kfit.Trainer(made, tiny.strategy(replicas))
    trainer.fit(*data, verbose=0, profile=True)
    assert set(trainer.report().step_parts) == {"whole step", "overhead of a graph call"}


@pytest.mark.long
def test_a_step_of_inputs_alone_gets_them_as_in_training(tiny: Any) -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            assert not isinstance(data, tuple)
            return super().train_step((data, data[:, 0]))

    x, _ = tiny.data(40)
    for data in (x, tf.data.Dataset.from_tensor_slices(x).batch(8)):
        made = Own([keras.layers.Dense(1)])
        made.compile("sgd", "mse")
        trainer = kfit.Trainer(made, strategy="one_device")
        trainer.fit(data, verbose=0, profile=True)
        assert "whole step" in trainer.report().step_parts


@pytest.mark.long
def test_class_weights_are_sample_weights_of_the_batch(tiny: Any) -> None:
    class Own(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y, weights = data
            return super().train_step((x, y, weights))

    x, y = tiny.data(40)
    trainer = kfit.Trainer(tiny.model(cls=Own), strategy="one_device")
    trainer.fit(x, y, 8, verbose=0, profile=True, class_weight={0: 1.0, 1: 2.0, 2: 1.0})
    assert "whole step" in trainer.report().step_parts


def test_batches_without_fixed_shapes_have_no_stand_in(tiny: Any) -> None:
    def batches() -> Any:
        for length in (3, 4, 5):
            yield np.zeros((2, length)), np.zeros(2)

    strategy = tiny.strategy(1)
    made = as_batches(batches(), None, None, strategy=strategy)
    assert first_batch(made, 2) is None
    made.close()
    x, y = tiny.data(10)
    made = as_batches(x, y, None, strategy=strategy, batch_size=4)
    batch = first_batch(made, 4)
    assert batch is not None
    assert len(batch.element) == 2
    np.testing.assert_array_equal(batch.element[0], x[:4])


def test_wrong_values_are_refused() -> None:
    with pytest.raises(ValueError, match="`profile` must be True or False"):
        check_profile("yes", kfit.distribute.OneDevice())
    with pytest.raises(ValueError, match="parameter_server"):
        check_profile(True, ParameterServer.__new__(ParameterServer))
