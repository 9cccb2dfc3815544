"""Wrappers that record and correct what a replica's step assigns to variables.

Each function here wraps a method of a variable (`kfit.exactness.patches` lists the methods).
Outside of a replica's step the wrapper calls the method unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.earlier_results import note_change
from kfit.exactness.metric_updates import as_on_one_device
from kfit.exactness.replica_context import current_replica, current_step, one_of_several
from kfit.exactness.row_states import written_back
from kfit.internals.graphs import current_graph
from kfit.internals.variables import is_copy_of_a_replica, tf_variable, whole_of_copy

Tensor = Any


def noted_assign(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `keras.Variable.assign`, for steps on several replicas.

    The replacement records which variables a replica assigns, since the end of the step makes these
    variables equal on all replicas. It also corrects three kinds of values:

    - What a user-written metric adds to a variable is converted, so that the replicas' values add
      up to the value on one device (`as_on_one_device`).
    - Of the state of a stateful RNN a replica assigns only the rows of its own examples
      (`written_back`).
    - A replica without examples does not change its own value of a variable with
      `synchronization="on_read"`, such as a metric's, unless the metric is reset.

    Updates of optimizers are neither recorded nor corrected.
    """

    def assign(self: keras.Variable, value: Tensor) -> Tensor:
        replica = current_replica()
        # An optimizer computes what it assigns from gradients that are summed over the replicas.
        if replica is None or replica.reduced:
            return original(self, value)
        note_change(self, replica)
        if id(self) in replica.own_metrics and self.aggregation == "sum" and not replica.adds_up:
            value = as_on_one_device(self, value, replica)
        if replica.may_be_empty and is_per_replica(self) and not replica.resets:
            value = replica.unless_empty(tf.cast(value, tf_variable(self).dtype), tf_variable(self))
        if id(self) in replica.row_states:
            value = written_back(replica, self, value)
        replica.assigned.setdefault(id(self), (self, []))[1].append(_here(value))
        with replica.assigning():
            return original(self, value)

    return assign


def only_of_keras(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `tf.Variable.assign` or a similar method, for several replicas.

    In a step on several replicas, the replacement raises a ValueError if all replicas share one
    variable: they would overwrite each other's values. Keras' variables, such as those of
    `add_weight`, may be assigned, since each replica has its own copy. Random generators may change
    their states, too.

    A step may change the `tf.Variable` inside a Keras variable (`variable.value.assign(...)`). The
    replacement records that as `noted_assign` does what goes through the Keras variable.
    """

    def change(self: tf.Variable, *args: Any, **kwargs: Any) -> Any:
        step, replica = current_step(), one_of_several()
        if step is None or replica is None or step.strategy.num_replicas == 1 or replica.draws:
            return original(self, *args, **kwargs)
        if not is_copy_of_a_replica(self):
            raise ValueError(
                f"The tf.Variable {_name_of(self)} is changed in a step on several replicas: each "
                "of them would change it, or a copy that the others do not see. Make it a variable "
                "of its layer: `self.add_weight(..., trainable=False)` if all replicas assign the "
                'same, as to a counter of steps; else with an `aggregation` such as "sum", which '
                "says what becomes of the replicas' values."
            )
        if args and not (replica.reduced or replica.assigns):
            replica.changed.setdefault(id(whole_of_copy(self)), []).append(_here(args[0]))
        return original(self, *args, **kwargs)

    return change


def _name_of(variable: tf.Variable) -> str:
    """Returns the name by which the user knows a variable: that of the attribute that holds it.

    It is looked for in the layers and models whose methods run now. Without one it is the name of
    the variable, which is usually "Variable:0".
    """
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, keras.Layer):
            for name, value in vars(owner).items():
                if value is variable:
                    return f"`{name}` of {owner.name!r}"
        frame = frame.f_back
    return repr(variable.name)


def _here(value: Any) -> Any:
    """Converts a value to a tensor of the graph that is being traced.

    A variable is read. A tensor from outside of the graph gets a copy in the graph.
    """
    value = tf.convert_to_tensor(value)
    here = current_graph()
    is_here = tf.executing_eagerly() or getattr(value, "graph", None) is here
    return value if is_here else tf.identity(value)
