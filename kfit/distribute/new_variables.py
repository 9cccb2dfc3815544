"""Creates `tf.Variable`s inside Keras variables, in the scope of a strategy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.internals.variables import make_tf_variable


def initialize(variable: keras.Variable, value: Any, *, like: Any) -> None:
    """Creates a new `tf.Variable` inside a Keras variable, in the active scope.

    Args:
        variable: The Keras variable.
        value: The initial value.
        like: The earlier `tf.Variable`, whose `trainable` the new one gets. A sharded variable has
            no `trainable`; then the new one is trainable.
    """
    with made_trainable(variable, getattr(like, "trainable", True)):  # shards have no `trainable`
        make_tf_variable(variable, value)


@contextmanager
def made_trainable(variable: keras.Variable, trainable: bool) -> Iterator[None]:
    """Context in which Keras creates a variable's `tf.Variable` with the given `trainable`.

    Keras itself would take the `trainable` of the Keras variable, which is False while its layer is
    frozen. But a `tf.Variable` cannot be made trainable later, when the layer is no longer frozen.
    The Keras variable is not changed: another thread may be reading what it trains.

    Args:
        variable: The Keras variable.
        trainable: Whether the `tf.Variable` will be trainable.
    """

    def create(next_creator: Callable[..., Any], **settings: Any) -> Any:
        is_this = settings.get("name") == variable.name  # its initializer may make others
        return next_creator(**settings | ({"trainable": trainable} if is_this else {}))

    with tf.init_scope(), tf.variable_creator_scope(create):  # Keras leaves graphs in this way, too
        yield


def require_addable(variable: keras.Variable, strategy: Strategy) -> None:
    """Raises an error if the replicas' own values of a variable cannot be combined, by its dtype.

    These are sums of booleans, and means of anything but floats where each replica keeps its value.
    """
    is_own = variable.synchronization == "on_read" and strategy.num_replicas > 1
    if is_own and variable.aggregation == "mean" and not tf.as_dtype(variable.dtype).is_floating:
        raise ValueError(
            f"The variable {variable.path!r} has the dtype {variable.dtype!r} and is declared "
            "`aggregation='mean'`, but each replica has a value of its own, and a mean of "
            "integers need not be one. Make it a variable of floats, or one whose values are "
            'added, by `aggregation="sum"`.'
        )
    if variable.dtype == "bool" and variable.aggregation == "sum" and strategy.num_replicas > 1:
        raise ValueError(
            f"The variable {variable.path!r} has the dtype 'bool', but the values of the replicas "
            "are added, as of each variable of a metric. Make it a number, such as "
            "`self.add_variable((), initializer='zeros', dtype='int32')`, add to it, and compare "
            "it with 0 in `result`."
        )
