"""The `tf.distribute` scope that a model was made in, or that kfit is called in.

Users who come from `keras.Model.fit` build and compile a model in a strategy's scope. Then the
variables of the model belong to that strategy: no other strategy can train them. Keras also stores
the strategy in the model.
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
    """Returns the strategy that a model was made under, or else the strategy whose scope is active.

    Args:
        model: A model. For any other object, only the active scope counts.

    Returns:
        TensorFlow's strategy; None if the model was made in no scope and no scope is active.
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
    """Returns the strategy that a `tf.Variable` belongs to; None for an ordinary `tf.Variable`."""
    if isinstance(value, tf.distribute.DistributedValues):
        return getattr(value, "distribute_strategy", None)
    return None


def check_scope(strategy: Strategy) -> None:
    """Checks that no scope is active except the scope of the strategy that kfit trains on.

    Args:
        strategy: The adapter (kfit's wrapper of a `tf.distribute.Strategy`) that kfit trains on.

    Raises:
        ValueError: If the scope of another strategy is active.
    """
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy.tf_strategy:
        raise in_another_scope(strategy.name)


def in_another_scope(name: str) -> ValueError:
    """Returns the error to raise if a strategy is used while the scope of another one is active.

    Args:
        name: The name of the strategy that is used, for the message.
    """
    return ValueError(
        f"`strategy` is {name!r}, but this is called in the scope of a "
        f"{type(tf.distribute.get_strategy()).__name__}, whose variables no other strategy can "
        "use. Call it outside of `with strategy.scope():`, or pass that strategy."
    )


def value_in_other_scope(variable: keras.Variable, strategy: Strategy) -> Any:
    """Returns the value of a variable that is on the devices of another strategy; otherwise None.

    Needed to train a model that was made in the scope of another strategy.

    Args:
        variable: The variable.
        strategy: The adapter (kfit's wrapper of a `tf.distribute.Strategy`) that is about to use
            the variable.

    Raises:
        ValueError: If the variable is on a ps task (parameter server) that can no longer be
            reached.
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
    """Returns the value of a variable, read in the scope of the strategy that it belongs to.

    This also works while the scope of another strategy is active.

    Args:
        value: The TensorFlow variable.
        owner: The strategy that the variable belongs to.
    """

    def read() -> tf.Tensor:
        with owner.scope():
            return tf.convert_to_tensor(value)

    if not tf.distribute.has_strategy():
        return read()
    with ThreadPoolExecutor(1) as thread:  # scopes are per thread: a new thread is in none
        return thread.submit(read).result()


def forget_scope(model: keras.Model) -> None:
    """Makes Keras treat a model as if it had not been made in the scope of a strategy.

    The model's variables must be ordinary variables already. The functions that Keras has traced
    for the model are dropped, since they use its earlier variables.
    """
    for layer in all_layers(model):
        if isinstance(layer, keras.Model):
            forget_strategy(layer)
            layer.train_function = layer.test_function = layer.predict_function = None
