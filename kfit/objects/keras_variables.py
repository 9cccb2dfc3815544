"""Lists the variables of layers, models, metrics and optimizers that other objects hold.

Those of TensorFlow's moving averages and checkpoints are listed, too.

A callback may train a second model, as for a GAN or for distillation. Its optimizer and metrics
belong to this model, but Keras does not list their variables among those of the model.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import nullcontext
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.owned import owned_optimizers
from kfit.distribute.scopes import scope_of
from kfit.internals.variables import averages_of

OF_OPTIMIZER = "optimizer"
OF_METRIC = "metric"
CHECKPOINTS = (tf.train.Checkpoint, tf.train.CheckpointManager)
KerasPath = tuple[str | int, ...]


def variables_of(value: Any) -> Iterator[tuple[KerasPath, Any]]:
    """Yields the variables of an object of Keras, or of an average or a checkpoint of TensorFlow.

    Each has a path that tells them apart. Those of a checkpoint are its own attributes, such as its
    `save_counter`, which numbers the files. TensorFlow creates this one when it is first read. What
    a manager of checkpoints remembers besides is in a file beside them, which it reads again.

    For a model these include the variables of its optimizers and metrics, which the model creates
    later than its own: their paths begin with `OF_OPTIMIZER` or `OF_METRIC`.
    """
    if isinstance(value, CHECKPOINTS):
        yield from _variables_of_checkpoint(value)
        return
    is_average = isinstance(value, tf.train.ExponentialMovingAverage)
    variables = averages_of(value) if is_average else value.variables
    yield from (((index,), variable) for index, variable in enumerate(variables))
    if not isinstance(value, keras.Model):
        return
    seen = {id(variable) for variable in value.variables}
    parts = ((OF_OPTIMIZER, owned_optimizers(value)), (OF_METRIC, value.metrics))
    for kind, of_kind in parts:
        for number, part in enumerate(of_kind):
            for index, variable in enumerate(part.variables):
                if id(variable) not in seen:
                    seen.add(id(variable))
                    yield (kind, number, index), variable


def _variables_of_checkpoint(value: Any) -> Iterator[tuple[KerasPath, Any]]:
    checkpoint = value.checkpoint if isinstance(value, tf.train.CheckpointManager) else value
    yield ("save_counter",), checkpoint.save_counter
    for name, held in vars(checkpoint).items():
        if isinstance(held, (tf.Variable, keras.Variable)) and held is not checkpoint.save_counter:
            yield (name,), held


def build_optimizers(model: keras.Model, saved: Collection[KerasPath]) -> None:
    """Creates the variables of a model's optimizers that a snapshot has values for.

    An optimizer creates its variables in its first step. It is left as it is if it would create
    others than those in the snapshot, since the model was trained with other weights.

    Args:
        model: The model.
        saved: The paths of the saved variables, as `variables_of` yields them. Those that have not
            changed since training began are not among them; this holds for none of those that the
            optimizer has created since.
    """
    strategy = scope_of(model)
    for number, optimizer in enumerate(owned_optimizers(model)):
        of_optimizer = [path for path in saved if path[:2] == (OF_OPTIMIZER, number)]
        count = max((int(path[-1]) + 1 for path in of_optimizer), default=0)
        with strategy.scope() if strategy is not None else nullcontext():
            if not optimizer.built and count > len(optimizer.variables):
                alike = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
                alike.build(model.trainable_variables)
                if len(alike.variables) == count:
                    optimizer.build(model.trainable_variables)
