"""The `tf.distribute` scope that a model was made in, or that kfit is called in.

Users who come from `keras.Model.fit` have built and compiled a model in a strategy's scope. The
model's variables belong to that strategy: no other strategy can train them, and Keras stores the
strategy in the model.
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
    """Returns the strategy in whose scope a model was made, or else that of the active scope.

    Args:
        model: A model; for any other object, only the active scope counts.

    Returns:
        The strategy; None if there is none.
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
    """Returns the strategy whose devices a `tf.Variable` is on; None for a plain variable."""
    if isinstance(value, tf.distribute.DistributedValues):
        return getattr(value, "distribute_strategy", None)
    return None


def check_scope(strategy: Strategy) -> None:
    """Checks that kfit is not called in the scope of another strategy.

    Raises:
        ValueError: If another strategy's scope is active.
    """
    if tf.distribute.has_strategy() and tf.distribute.get_strategy() is not strategy.tf_strategy:
        raise in_another_scope(strategy.name)


def in_another_scope(name: str) -> ValueError:
    """Returns the error for the use of a strategy while the scope of another one is active.

    Args:
        name: The name of the strategy that is used.
    """
    return ValueError(
        f"`strategy` is {name!r}, but this is called in the scope of a "
        f"{type(tf.distribute.get_strategy()).__name__}, whose variables no other strategy can "
        "use. Call it outside of `with strategy.scope():`, or pass that strategy."
    )


def value_in_other_scope(variable: keras.Variable, strategy: Strategy) -> Any:
    """Returns the value of a variable if it is on the devices of another strategy; otherwise None.

    Args:
        variable: The variable.
        strategy: The adapter of the strategy that is going to use it.

    Raises:
        ValueError: If the variable is on a ps task that cannot be reached any more.
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
    """Reads a variable in the scope of its strategy, even if another strategy's scope is active.

    Args:
        value: The variable.
        owner: Its strategy.
    """

    def read() -> tf.Tensor:
        with owner.scope():
            return tf.convert_to_tensor(value)

    if not tf.distribute.has_strategy():
        return read()
    with ThreadPoolExecutor(1) as thread:  # scopes are per thread: a new thread is in none
        return thread.submit(read).result()


def forget_scope(model: keras.Model) -> None:
    """Makes Keras treat a model as made in no strategy's scope.

    The model's variables must be plain already. It also drops the functions that Keras has traced,
    since they use the old variables.
    """
    for layer in all_layers(model):
        if isinstance(layer, keras.Model):
            forget_strategy(layer)
            layer.train_function = layer.test_function = layer.predict_function = None
