"""What a step on two replicas gives to `tf.summary`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

import kfit


class Writes(keras.Sequential):
    """Writes a scalar in each step, made of the images, the logs and the model."""

    def __init__(self, value: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__([keras.Input((4,)), keras.layers.Dense(3)])
        self.value = value

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        tf.summary.scalar("value", self.value(data[0], logs, self), step=0)
        return logs


class WritesInCall(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        tf.summary.histogram("activations", x, step=0)
        return x


def _whole(x: Any, logs: Any, model: Any) -> Any:
    return tf.distribute.get_replica_context().all_reduce("sum", tf.reduce_sum(x))


OF_A_REPLICA: dict[str, Callable[[Any, Any, Any], Any]] = {
    "examples": lambda x, logs, model: tf.reduce_mean(x),
    "logs": lambda x, logs, model: logs["loss"],
}
OF_ALL: dict[str, Callable[[Any, Any, Any], Any]] = {
    "learning rate": lambda x, logs, model: model.optimizer.learning_rate.value,
    "weights": lambda x, logs, model: tf.norm(model.trainable_variables[0].value),
    "sum over all": _whole,
}


def _told(model: keras.Model, tiny: Any, folder: Path, replicas: int, recwarn: Any) -> bool:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    with tf.summary.create_file_writer(str(folder)).as_default():
        kfit.fit(model, *tiny.data(8), strategy=tiny.strategy(replicas), batch_size=4, verbose=0)
    return any("`tf.summary`" in str(each.message) for each in recwarn)


@pytest.mark.parametrize("value", [*OF_A_REPLICA, *OF_ALL])
def test_values_of_one_replica_are_warned_of(
    tiny: Any, tmp_path: Path, value: str, recwarn: Any
) -> None:
    model = Writes((OF_A_REPLICA | OF_ALL)[value])
    assert _told(model, tiny, tmp_path, 2, recwarn) == (value in OF_A_REPLICA)


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_a_layer_writes_is_warned_of(
    tiny: Any, tmp_path: Path, replicas: int, recwarn: Any
) -> None:
    model = keras.Sequential([keras.Input((4,)), WritesInCall(), keras.layers.Dense(3)])
    assert _told(model, tiny, tmp_path, replicas, recwarn) == (replicas == 2)
