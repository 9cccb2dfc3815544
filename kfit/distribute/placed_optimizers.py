"""Lets optimizers follow the variables that are moved to the devices of a strategy, and back.

An optimizer belongs to one strategy, and finds the slots of a variable by the `tf.Variable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.contexts import is_on_devices
from kfit.distribute.owned import Owned
from kfit.distribute.strategy import Strategy
from kfit.internals.optimizers import belong_to, key_of, strategy_of
from kfit.internals.variables import make_tf_variable, tf_variable


def built_on_devices(build: Callable[..., Any], strategy: Strategy) -> Callable[..., Any]:
    """Wraps the method by which an optimizer is built for the variables that it will update.

    An optimizer that the model does not hold yet makes its slots on the devices of these variables,
    too. Its other variables, such as the step count, which exist before, are moved there. Such
    optimizers are those that a function chooses for each variable, as in Keras' MultiOptimizer.

    Args:
        build: Keras' method, `Optimizer.build`.
        strategy: kfit's wrapper of the strategy.

    Returns:
        The function to call instead of `build`.
    """

    def built(optimizer: keras.optimizers.Optimizer, variables: Any) -> Any:
        variables = list(variables)
        belongs = strategy_of(optimizer) is strategy.tf_strategy
        if not belongs and any(strategy.is_placed(tf_variable(v)) for v in variables):
            belong_to(optimizer, strategy.tf_strategy)
            is_in_scope = tf.distribute.get_strategy() is strategy.tf_strategy
            with tf.init_scope(), nullcontext() if is_in_scope else strategy.scope():
                for variable in optimizer.variables:
                    if not strategy.is_placed(tf_variable(variable)):
                        make_tf_variable(variable, tf_variable(variable).read_value())
        return build(optimizer, variables)

    return built


def in_scope_of_optimizer(add: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps the method by which an optimizer makes a slot, such as a momentum.

    A hook may build the optimizer, as that of Keras' BackupAndRestore does. It runs outside of the
    scope, but the variable that the slot belongs to is on the strategy's devices.

    Args:
        add: Keras' method, `add_variable_from_reference`.

    Returns:
        The function to call instead of `add`.
    """

    def added(optimizer: keras.optimizers.Optimizer, *args: Any, **kwargs: Any) -> Any:
        is_in_scope = tf.distribute.has_strategy()
        with nullcontext() if is_in_scope else strategy_of(optimizer).scope():
            return add(optimizer, *args, **kwargs)

    return added


def to_variables_of_its_strategy(
    apply: Callable[..., Any],
    place: Callable[[keras.optimizers.Optimizer], None],
    is_moved: Callable[[keras.Variable], bool],
) -> Callable[..., Any]:
    """Wraps the method by which an optimizer updates variables.

    A hook may call an optimizer that the model does not hold. Such an optimizer knows nothing of
    the devices on which the model's variables are meanwhile, and TensorFlow would fail. One that
    the hook has just given to the model, as by `compile`, is moved to the devices now.

    Args:
        apply: Keras' method, `Optimizer.apply`.
        place: Moves an optimizer to the devices of its model, if a model holds it.
        is_moved: Returns whether a variable has another `tf.Variable` during the present call.

    Returns:
        The function to call instead of `apply`. It raises a ValueError for such an optimizer.
    """

    def applied(
        optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None
    ) -> Any:
        ordinary = tf.distribute.get_strategy()
        if tf.distribute.has_strategy() or strategy_of(optimizer) is not ordinary:
            return apply(optimizer, grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)
        moved = [v for v in variables or () if is_on_devices(tf_variable(v)) or is_moved(v)]
        if moved:
            place(optimizer)
        if moved and strategy_of(optimizer) is ordinary:
            raise ValueError(
                f"`optimizer` {optimizer.name!r} updates {moved[0].path!r} in a hook. During this "
                "call the variable is on the devices of the strategy, which only the optimizers of "
                "the model know. Keep the optimizer in an attribute of the model, "
                "such as `model.second_optimizer = optimizer`."
            )
        return apply(optimizer, grads, variables)

    return applied


@contextmanager
def rekeyed(owned: Owned, tf_strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Context in which a model's `tf.Variable`s are replaced; its end updates the optimizers.

    A built optimizer finds the slots of a variable, such as a momentum, by the identity of the
    `tf.Variable`. So at the end of the context, each old `tf.Variable` is replaced by the new one
    as a key in the optimizers.

    Args:
        owned: The variables and optimizers of the model.
        tf_strategy: The strategy that the model's optimizers belong to afterwards.
    """
    optimizers = owned.optimizers
    variables = [v for v in owned.variables if tf_variable(v) is not None]
    before = [[key_of(optimizer, v) for v in variables] for optimizer in optimizers]
    yield
    for optimizer, old_keys in zip(optimizers, before, strict=True):
        belong_to(optimizer, tf_strategy)
        renamed = {
            old: key_of(optimizer, variable)
            for old, variable in zip(old_keys, variables, strict=True)
        }
        for name, table in list(vars(optimizer).items()):
            if isinstance(table, dict) and any(key in renamed for key in table):
                object.__setattr__(
                    optimizer, name, {renamed.get(key, key): v for key, v in table.items()}
                )
            elif isinstance(table, set) and any(key in renamed for key in table):
                object.__setattr__(optimizer, name, {renamed.get(key, key) for key in table})
