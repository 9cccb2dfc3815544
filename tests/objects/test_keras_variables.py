"""The variables of a second model, those of its optimizer among them."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kfit.objects import Attributes
from kfit.objects.keras_variables import build_optimizers, variables_of


def compiled(optimizer: Any = "adam") -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def train(model: keras.Model, steps: int) -> None:
    for step in range(steps):
        model.train_on_batch(np.full((4, 2), step + 1.0), np.ones((4, 1)))


def named(value: Any) -> list[Any]:
    return [path for path, _ in variables_of(value)]


def test_each_is_listed_once_and_those_of_the_model_first() -> None:
    model = compiled(keras.optimizers.SGD(momentum=0.9))
    optimizer = [("optimizer", 0, index) for index in range(2)]
    metrics = [("metric", 0, 0), ("metric", 0, 1)]
    assert named(model) == [(0,), (1,), *optimizer, *metrics]
    train(model, 1)
    optimizer = [("optimizer", 0, index) for index in range(4)]
    assert named(model)[:6] == [(0,), (1,), *optimizer]
    assert named(keras.metrics.Mean()) == [(0,), (1,)]


def test_an_optimizer_is_built_for_the_saved_variables_only() -> None:
    trained, other = compiled(), compiled()
    train(trained, 1)
    build_optimizers(other, named(other))
    assert not other.optimizer.built
    other.layers[0].trainable = False
    build_optimizers(other, named(trained))
    assert not other.optimizer.built
    other.layers[0].trainable = True
    build_optimizers(other, named(trained))
    assert len(other.optimizer.variables) == len(trained.optimizer.variables)


def test_averages_of_tensorflow_go_on() -> None:
    def made() -> tuple[tf.Variable, tf.train.ExponentialMovingAverage]:
        variable, average = tf.Variable(1.0), tf.train.ExponentialMovingAverage(0.5)
        average.apply([variable])
        return variable, average

    (value, average), (same, other) = made(), made()
    before, after = Attributes(Owner(part=average)), Attributes(Owner(part=other))
    value.assign(3.0)
    average.apply([value])
    assert before.unsaved() == []
    after.load_state_dict(before.state_dict())
    assert float(other.average(same)) == float(average.average(value)) == 2.0


@pytest.mark.parametrize("held", ["checkpoint", "manager"])
def test_checkpoints_of_tensorflow_go_on_with_the_next_number(tmp_path: Any, held: str) -> None:
    def started() -> tuple[tf.train.CheckpointManager, Attributes]:
        checkpoint = tf.train.Checkpoint(steps=tf.Variable(0))
        manager = tf.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
        return manager, Attributes(Owner(part=checkpoint if held == "checkpoint" else manager))

    manager, before = started()
    for _ in range(3):
        manager.checkpoint.steps.assign_add(4)
        manager.save()
    state = before.state_dict()
    assert before.unsaved() == []
    manager.save()  # after the snapshot
    manager, after = started()
    after.load_state_dict(state)
    assert int(manager.checkpoint.steps) == 12
    for number in (4, 5):
        assert manager.save().endswith(f"ckpt-{number}")
    names = [path.rpartition("-")[2] for path in manager.checkpoints]
    assert names == ["4", "5"]
    assert {path.stem for path in tmp_path.glob("*.index")} == {"ckpt-4", "ckpt-5"}


class Owner:
    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def test_a_second_model_goes_on(recwarn: Any) -> None:
    models = [compiled(), compiled(keras.optimizers.SGD(momentum=0.9))]
    again = [compiled(), compiled(keras.optimizers.SGD(momentum=0.9))]
    before, after = (Attributes(Owner(a=one, b={"b": two})) for one, two in (models, again))
    for model in models:
        train(model, 3)
    models[1].optimizer.learning_rate = 0.5
    after.load_state_dict(before.state_dict())
    assert [str(each.message) for each in recwarn if each.category is UserWarning] == []
    for model, other in zip(models, again, strict=True):
        train(model, 2)
        train(other, 2)
        for one, two in zip(model.get_weights(), other.get_weights(), strict=True):
            np.testing.assert_array_equal(one, two)
