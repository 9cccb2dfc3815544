"""Scopes of tf.distribute that a model was made in, or that kfit is called in.

Who comes from `keras.Model.fit` has built and compiled a model in a strategy's scope. Its variables
belong to that strategy: no other one can train them, and Keras keeps the strategy in the model.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.layers import all_layers
from kfit.internals.models import forget_strategy, strategy_made_in
from kfit.internals.strategies import is_sharded
from kfit.internals.variables import tf_variable


def scope_of(model: Any) -> tf.distribute.Strategy | None:
    """The strategy in whose scope a model was made, or else that of the scope of this call.

    Args:
        model: A model, or anything else, which was made in no scope.
    """
    if isinstance(model, keras.Model):
        made_in = strategy_made_in(model)
        if made_in is not None:
            return made_in
        for variable in model.variables:
            belongs_to = strategy_of(tf_variable(variable))
            if belongs_to is not None:
                return belongs_to
    return tf.distribute.get_strategy() if tf.distribute.has_strategy() else None


def strategy_of(value: Any) -> tf.distribute.Strategy | None:
    """The strategy whose devices the `tf.Variable` inside a Keras variable is on, if it tells."""
    if isinstance(value, tf.distribute.DistributedValues):
        return getattr(value, "distribute_strategy", None)
    return None


def check_scope(strategy: Strategy) -> None:
    """Makes sure that kfit is not called in the scope of another strategy.

    Raises:
        ValueError: If it is.
    """
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy.tf_strategy:
        raise in_another_scope(strategy.name)


def in_another_scope(name: str) -> ValueError:
    """What is wrong with using the strategy of this name in the scope that this is called in."""
    return ValueError(
        f"`strategy` is {name!r}, but this is called in the scope of a "
        f"{type(tf.distribute.get_strategy()).__name__}, whose variables no other strategy can "
        "use. Call it outside of `with strategy.scope():`, or pass that strategy."
    )


def value_in_other_scope(variable: keras.Variable, strategy: Strategy) -> Any:
    """The value of a variable that lives on the devices of another strategy, else None.

    Raises:
        ValueError: If nobody can read it any more.
    """
    value = tf_variable(variable)
    if value is None or strategy.is_placed(value):
        return None
    owner = strategy_of(value)
    if owner is not None:
        return _read_in_scope(value, owner)
    if not (is_sharded(value) or "/job:ps" in getattr(value, "device", "")):
        return None
    try:
        return tf.constant(tf.convert_to_tensor(value).numpy())
    except tf.errors.OpError as error:
        raise ValueError(
            f"`model` has a variable {variable.path!r} on a ps task that cannot be read: its "
            "cluster is gone. Make the model again, and load its weights from a file."
        ) from error


def _read_in_scope(value: Any, owner: tf.distribute.Strategy) -> tf.Tensor:
    """The value of a variable of a strategy, also where this is called in the scope of another."""

    def read() -> tf.Tensor:
        with owner.scope():
            return tf.convert_to_tensor(value)

    if not tf.distribute.has_strategy():
        return read()
    with ThreadPoolExecutor(1) as thread:  # scopes are of a thread: a new one is in none
        return thread.submit(read).result()


def forget_scope(model: keras.Model) -> None:
    """Has Keras take a model, whose variables are plain now, as one that was made in no scope.

    What Keras traced holds the variables that were there before.
    """
    for layer in all_layers(model):
        if isinstance(layer, keras.Model):
            forget_strategy(layer)
            layer.train_function = layer.test_function = layer.predict_function = None
