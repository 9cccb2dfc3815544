"""Wrappers that record and correct what a replica's step assigns to variables.

Each function here wraps a method of a variable (`kfit.exactness.patches` lists them) and calls it
unchanged unless this thread is tracing a replica's step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.metric_updates import as_on_one_device
from kfit.exactness.replica_context import current_replica, current_step, one_of_several
from kfit.exactness.row_states import written_back
from kfit.internals.graphs import current_graph
from kfit.internals.variables import is_copy_of_a_replica, tf_variable

Tensor = Any


def noted_assign(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `Variable.assign`: records assigned variables, and corrects what a replica assigns.

    A replica without examples does not change its per-replica variables. Updates of metrics and
    rows of RNN states are converted (`as_on_one_device`, `written_back`).
    """

    def assign(self: keras.Variable, value: Tensor) -> Tensor:
        replica = current_replica()
        # An optimizer computes what it assigns from gradients that are summed over the replicas.
        if replica is None or replica.reduced:
            return original(self, value)
        if id(self) in replica.own_metrics and self.aggregation == "sum" and not replica.adds_up:
            value = as_on_one_device(self, value, replica)
        if replica.may_be_empty and is_per_replica(self):
            value = replica.unless_empty(tf.cast(value, tf_variable(self).dtype), tf_variable(self))
        if id(self) in replica.row_states:
            value = written_back(replica, self, value)
        replica.assigned.setdefault(id(self), (self, []))[1].append(_here(value))
        return original(self, value)

    return assign


def only_of_keras(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a method that changes a `tf.Variable`: refuses variables that kfit has not placed."""

    def change(self: tf.Variable, *args: Any, **kwargs: Any) -> Any:
        step, replica = current_step(), one_of_several()
        if (
            step is not None
            and replica is not None
            and step.strategy.num_replicas > 1
            and not replica.draws
            and not is_copy_of_a_replica(self)
        ):
            raise ValueError(
                f"The tf.Variable {self.name!r} is changed in a step on several replicas: each "
                "of them would change it, or a copy that the others do not see. Make it a variable "
                'of its layer, `self.add_weight(..., trainable=False, aggregation="sum")`, or '
                "with another `aggregation`, which says what becomes of the replicas' values."
            )
        return original(self, *args, **kwargs)

    return change


def _here(value: Any) -> Any:
    """The value as a tensor of the current graph; variables are read."""
    value = tf.convert_to_tensor(value)
    here = current_graph()
    is_here = tf.executing_eagerly() or getattr(value, "graph", None) is here
    return value if is_here else tf.identity(value)
