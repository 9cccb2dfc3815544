"""Makes the variables that layers assign in a step equal on all replicas again.

During a step each replica changes its own copy of such a variable. Afterwards all copies must hold
the value that one device would have computed from the global batch. Each variable has one of these
rules:

    equal   Computed only from values that are equal on all replicas: kept as it is
            (`kfit.graphs.origins` reads that from the graph). Examples: a step counter, Keras'
            SpectralNormalization, a synchronized BatchNormalization, any value that a layer
            all-reduces by itself.
    mean    The mean of the replicas' values, weighted by their numbers of examples: moving averages
            of BatchNormalization, and variables declared `aggregation="mean"`.
    sum     The value before the step plus the sum of what the replicas have added: variables
            declared `aggregation="sum"`.
    first   The value of the first replica that has examples: variables declared
            `aggregation="only_first_replica"`.
    rows    A row for each example, each taken from the replica that has the example: states of
            stateful RNNs.

Any other assigned value would depend on the number of replicas. While the step is traced, before
the first step runs, an error refuses such a value and names the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.contexts import is_on_devices
from kfit.distribute.owned import owned_optimizers, owned_variables
from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.changed_gradients import report_use
from kfit.exactness.collectives import all_reduce_sum, is_first_with_examples
from kfit.exactness.declared_aggregation import warn_of_misfit
from kfit.exactness.own_code import has_own_code, is_of_keras
from kfit.exactness.replica_context import Replica, current_step
from kfit.exactness.row_states import states_of_rows
from kfit.internals import patch_points as points
from kfit.internals.layers import all_layers, own_non_trainable_variables
from kfit.internals.patching import patched
from kfit.internals.variables import tf_variable

Tensor = Any

_AVERAGES = ("moving_mean", "moving_variance", "moving_stddev", "renorm_mean", "renorm_stddev")
"""Attributes of BatchNormalization that hold moving averages."""
_OF_KERAS = ("iteration", "learning_rate")
"""The variables of an optimizer for which Keras, and not the program, declares an aggregation."""
_DECLARED = {"mean": "mean", "sum": "sum", "only_first_replica": "first"}


class LayerState:
    """An object that makes the variables that a model's step assigns equal on all replicas.

    During a step each replica changes its own copy of such a variable, for example of
    BatchNormalization's moving averages. At the end of the step `agree` gives all copies the value
    that one device would have.

    Args:
        model: The model, built.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._rules: dict[int, str] = {}
        self._undeclared: set[int] = set()
        for layer in all_layers(model):
            if isinstance(layer, keras.layers.BatchNormalization):
                rule = "equal" if layer.synchronized else "mean"
                averages = [getattr(layer, name, None) for name in _AVERAGES]
                self._rules |= {id(v): rule for v in averages if v is not None}
            if not is_of_keras(layer):
                # Without the weights of a frozen layer, which also count as non-trainable. The list
                # is private in Keras.
                made = own_non_trainable_variables(layer)
                self._undeclared |= {id(v) for v in made if v.aggregation == "none"}
        self._rules |= {id(v): "rows" for v in states_of_rows(model)}
        self._undeclared -= self._rules.keys()
        optimizers = owned_optimizers(model)
        of_optimizers = {id(v) for o in optimizers for v in o.variables}
        of_keras = [v for o in optimizers for v in o.variables if v.name in _OF_KERAS]
        self._of_keras = set(map(id, of_keras))
        owned = [v for v in owned_variables(model) if id(v) not in of_optimizers]
        # In a loss or an object of the program, no layer says how a variable changes.
        listed = of_optimizers | {id(v) for each in (model, *model.metrics) for v in each.variables}
        self._undeclared |= {id(v) for v in owned if v.aggregation == "none"} - listed
        self._owned = owned
        self._per_replica = [v for v in owned if is_per_replica(v)]
        aggregated = [v for v in [*owned, *of_keras] if v.aggregation != "none"]
        self._aggregated = [v for v in aggregated if not is_per_replica(v)]

    @property
    def may_count(self) -> bool:
        """Whether the model has code or variables that may depend on the number of examples.

        If so, a replica's number of examples must not be a constant in the graph: a constant does
        not show that a value was computed from this number.
        """
        return bool(self._undeclared) or has_own_code(self._model)

    @contextmanager
    def aggregated_by_kfit(self) -> Iterator[None]:
        """Context in which TensorFlow does not combine values that replicas assign to a variable.

        kfit combines these values at the end of the step (`agree`).
        """
        with ExitStack() as stack:
            for variable in self._aggregated:
                if is_on_devices(tf_variable(variable)):
                    none: Callable[[Any], Any] = lambda _: tf.VariableAggregation.NONE  # noqa: E731
                    stack.enter_context(patched(points.AGGREGATION, none, of=tf_variable(variable)))
            yield

    def before(self) -> dict[int, Tensor]:
        """Returns the values of the variables declared `aggregation="sum"`, before the step.

        `agree` needs these values to compute what the step has added. Call `before` on each replica
        at the beginning of the step.

        Returns:
            The values by the ids of the variables.
        """
        return {id(v): tf_variable(v) + 0 for v in self._aggregated if self._rule(v) == "sum"}

    def agree(self, replica: Replica, before: dict[int, Tensor]) -> None:
        """Makes the variables that layers have assigned in a step equal on all replicas again.

        In the step each replica has changed its own copy of such a variable. The method combines
        the copies by the variable's rule, such as `aggregation="mean"`. Call it on each replica at
        the end of the step. It is a collective: all replicas must call it.

        Args:
            replica: The replica that is being traced.
            before: The result that the method `before` returned at the beginning of the step:
                values of variables, by the variables' ids.

        Raises:
            ValueError: If a variable without a rule was assigned a value that may differ between
                replicas.
        """
        step = current_step()
        assert step is not None
        if replica.has_all or step.strategy.num_replicas == 1:
            return
        for variable, values in replica.assigned.values():
            is_declared = variable.aggregation in _DECLARED and id(variable) not in self._rules
            if is_declared and not is_per_replica(variable):
                copies = step.strategy.local_results(tf_variable(variable))
                handles = [copy.handle for copy in copies]
                warn_of_misfit(variable, self._owner_of(variable), values, handles, replica)
        for variable in self._owned:
            for value in replica.changed.pop(id(tf_variable(variable)), []):
                replica.assigned.setdefault(id(variable), (variable, []))[1].append(value)
        moved: list[tuple[keras.Variable, str]] = []
        for variable, _ in replica.assigned.values():
            rule = self._rule(variable)
            if rule in _PARTS and not is_per_replica(variable):
                moved.append((variable, rule))
        self._refuse_the_rest(replica, [variable for variable, _ in moved])
        if not moved:
            return
        parts = [_PARTS[rule](replica, v, before.get(id(v))) for v, rule in moved]
        with replica.summing():  # already weighted; no gradient flows through
            sums = all_reduce_sum(parts)
        replica.row_states.clear()  # from here on, whole states are assigned
        for (variable, rule), total in zip(moved, sums, strict=True):
            whole = total if rule != "sum" else total + _wide(before[id(variable)])
            if rule == "mean" and not tf_variable(variable).dtype.is_floating:
                whole = tf.round(whole)
            variable.assign(tf.cast(whole, tf_variable(variable).dtype))

    def _rule(self, variable: keras.Variable) -> str:
        known = self._rules.get(id(variable))
        return known or (
            _DECLARED.get(variable.aggregation, "") if self._declares(variable) else ""
        )

    def _declares(self, variable: keras.Variable) -> bool:
        """Returns whether the program declares the aggregation of a variable, if it has one."""
        return id(variable) not in self._of_keras

    def _refuse_the_rest(self, replica: Replica, moved: list[keras.Variable]) -> None:
        """Raises a ValueError if a replica's own value was assigned to a variable without a rule.

        A rule, such as `aggregation="mean"`, says how the replicas' values are combined. The graph
        shows whether a value is a replica's own, that is, may differ between replicas. On a TPU or
        with `run_eagerly`, the graph cannot be read: then any value that is assigned to a variable
        of a user-written layer counts as a replica's own.

        Args:
            replica: The replica that is being traced.
            moved: Assigned variables that have a rule, but are not combined yet. A value that is
                computed from one of them counts as a replica's own.
        """
        step = current_step()
        assert step is not None
        handles = [
            copy.handle
            for variable in [*self._per_replica, *moved]
            for copy in step.strategy.local_results(tf_variable(variable))
        ]
        readable = not (tf.executing_eagerly() or step.strategy.static_shapes)
        for variable, values in replica.assigned.values():
            if self._rule(variable) or is_per_replica(variable):
                continue
            if readable:
                refused = any(replica.origins.is_own(value, handles) for value in values)
            else:
                refused = id(variable) in self._undeclared
            if refused:
                report_use(values, replica)
                raise ValueError(self._advice(variable, readable))

    def _owner_of(self, variable: keras.Variable) -> str:
        """Returns the class and the name of the layer that a variable belongs to, for messages."""
        layers = reversed(all_layers(self._model))
        owners = (each for each in layers if any(variable is own for own in each.variables))
        owner = next(owners, self._model)
        return f"{type(owner).__name__} {owner.name!r}"

    def _advice(self, variable: keras.Variable, readable: bool) -> str:
        why = (
            "computed from the examples of one replica, from their number or from random numbers"
            if readable
            else "that cannot be looked into here (a TPU, or `run_eagerly=True`)"
        )
        if not self._declares(variable):
            return (
                f"The step assigns {variable.path!r} of the model's optimizer a value, {why}, so "
                "that each replica would have its own. Compute the value over all replicas: sums "
                'by `tf.distribute.get_replica_context().all_reduce("sum", value)`; or assign it '
                "in a hook, such as `on_train_batch_end`, from the logs of the whole batch. On one "
                "replica nothing is needed."
            )
        return (
            f"The variable {variable.path!r} of {self._owner_of(variable)} is assigned "
            f"a value in a step, {why}, and nothing says what becomes of the replicas' values. "
            'Make it by `add_weight(..., aggregation="sum")` if what all replicas add to it '
            'counts, "mean" for their mean, weighted by examples, or "only_first_replica" for that '
            "of one; or compute the value over all replicas: sums by "
            '`tf.distribute.get_replica_context().all_reduce("sum", value)`, others, such as a '
            "maximum, from the examples of all by `all_gather(values, axis=0)`. On one replica "
            "nothing is needed."
        )


def _of_mean(replica: Replica, variable: keras.Variable, _: Tensor) -> Tensor:
    return replica.weigh(_wide(tf_variable(variable), of_mean=True))


def _of_sum(replica: Replica, variable: keras.Variable, before: Tensor) -> Tensor:
    return replica.zero_if_empty(_wide(tf_variable(variable)) - _wide(before))


def _of_first(replica: Replica, variable: keras.Variable, _: Tensor) -> Tensor:
    value = _wide(tf_variable(variable))
    return tf.where(is_first_with_examples(replica), value, tf.zeros_like(value))


def _of_rows(replica: Replica, variable: keras.Variable, _: Tensor) -> Tensor:
    assert replica.rows is not None
    value = _wide(tf_variable(variable))
    row = tf.range(tf.shape(value, out_type=tf.int64)[0])
    own = tf.logical_and(row >= replica.rows.start, row < replica.rows.stop)
    own = tf.reshape(own, [-1, *[1] * (value.shape.rank - 1)])
    return tf.where(own, value, tf.zeros_like(value))


_PARTS: dict[str, Callable[[Replica, keras.Variable, Tensor], Tensor]] = {
    "mean": _of_mean,
    "sum": _of_sum,
    "first": _of_first,
    "rows": _of_rows,
}
"""For each rule, the function that computes what one replica contributes to the new value.

The sum of the replicas' contributions is the new value; with "sum" it is the change of the value.
"""


def _wide(value: Any, *, of_mean: bool = False) -> Tensor:
    """Converts a value to a dtype in which the replicas' values can be summed without overflow.

    Integers and booleans become int64. Floats become float32, except float64, which stays as it is.

    Args:
        value: A variable or tensor.
        of_mean: Whether the caller will compute a weighted mean of the replicas' values. Integers
            and booleans then become float64.
    """
    value = value + 0 if value.dtype != tf.bool else tf.identity(tf.convert_to_tensor(value))
    if value.dtype in (tf.float32, tf.float64):
        return value
    if value.dtype.is_floating:
        return tf.cast(value, tf.float32)
    return tf.cast(value, tf.float64 if of_mean else tf.int64)
