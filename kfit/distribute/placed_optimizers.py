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
from kfit.distribute.owned import Owned, wrapped_optimizers
from kfit.internals.optimizers import belong_to, chooser_of, key_of, strategy_of
from kfit.internals.variables import make_tf_variable, tf_variable


def build_for(
    optimizer: keras.optimizers.Optimizer, variables: list[Any], tf_strategy: Any
) -> None:
    """Makes an optimizer belong to a strategy, and builds it for variables on its devices.

    Call it in the strategy's scope, outside of all graphs.

    Args:
        optimizer: The optimizer, which is not built yet.
        variables: The model's variables that it will update.
        tf_strategy: The `tf.distribute.Strategy`.
    """
    adopt(optimizer, variables, tf_strategy)
    optimizer.build(variables)


def adopt(optimizer: keras.optimizers.Optimizer, variables: list[Any], tf_strategy: Any) -> None:
    """Makes an optimizer belong to a strategy, just before the optimizer is built.

    Call it in the strategy's scope. Optimizers that this optimizer wraps then belong to the
    strategy, too. Some variables of an optimizer, such as its step count, exist before it is built.
    If the strategy has several replicas, these variables are moved to the devices of the strategy.

    Args:
        optimizer: The optimizer, which is not built yet.
        variables: The model's variables that the optimizer will be built for.
        tf_strategy: The `tf.distribute.Strategy`.
    """
    waiting, seen = [optimizer], set()
    while waiting:
        part = waiting.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        belong_to(part, tf_strategy)
        if tf_strategy.num_replicas_in_sync > 1:
            for variable in part.variables:
                if not isinstance(tf_variable(variable), tf.distribute.DistributedValues):
                    make_tf_variable(variable, tf_variable(variable).read_value())
        waiting += wrapped_optimizers(part)
        # A MultiOptimizer calls a function of the user's to choose the optimizer of each variable.
        choose = chooser_of(part)
        waiting += [choose(variable) for variable in variables] if choose else []


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
    apply: Callable[..., Any], place: Callable[[keras.optimizers.Optimizer], None]
) -> Callable[..., Any]:
    """Wraps the method by which an optimizer updates variables.

    A hook may call an optimizer that the model does not hold. Such an optimizer knows nothing of
    the devices on which the model's variables are meanwhile, and TensorFlow would fail. One that
    the hook has just given to the model, as by `compile`, is moved to the devices now.

    Args:
        apply: Keras' method, `Optimizer.apply`.
        place: Moves an optimizer to the devices of its model, if a model holds it.

    Returns:
        The function to call instead of `apply`. It raises a ValueError for such an optimizer.
    """

    def applied(
        optimizer: keras.optimizers.Optimizer, grads: Any, trainable_variables: Any = None
    ) -> Any:
        if tf.distribute.has_strategy() or strategy_of(optimizer).num_replicas_in_sync > 1:
            return apply(optimizer, grads, trainable_variables)
        variables = None if trainable_variables is None else list(trainable_variables)
        placed = [v for v in variables or () if is_on_devices(tf_variable(v))]
        if placed:
            place(optimizer)
        if placed and strategy_of(optimizer).num_replicas_in_sync == 1:
            raise ValueError(
                f"`optimizer` {optimizer.name!r} updates {placed[0].path!r} in a hook. During this "
                "call the variable is on the devices of several replicas, which only the "
                "optimizers of the model know. Keep the optimizer in an attribute of the model, "
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
