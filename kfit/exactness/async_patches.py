"""Patches of Keras for asynchronous workers, which write to the same variables without waiting.

The patches are used with `ParameterServer`. Keras' `assign_add` reads a variable and then assigns
the sum. If another worker writes in between, the value of that worker is lost. So here counters
such as `optimizer.iterations`, and metrics, are updated by one add operation of the `tf.Variable`.
All metrics of Keras add sums to their variables. Whether a user-written one does so, too, the graph
of its update shows. If not (a maximum, a moving average), the update is Keras' own: it is that of
one device as long as no other worker updates the metric at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.parameter_server import ParameterServer
from kfit.distribute.sharded_variables import keras_for_shards
from kfit.exactness.metric_updates import changes_since, variables_of_own_metrics
from kfit.exactness.replica_context import OwnVariable
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals import patch_points as points
from kfit.internals.optimizers import apply_alone
from kfit.internals.patching import patched
from kfit.internals.variables import in_stateless_scope, tf_variable


@contextmanager
def keras_for_workers(model: keras.Model, strategy: ParameterServer) -> Iterator[list[tf.Tensor]]:
    """Context for tracing a step of `model` that several workers may run at the same time.

    Args:
        model: The model.
        strategy: kfit's wrapper of the strategy, in whose scope the step is traced.

    Yields:
        A list, which stays empty without a `LossScaleOptimizer`. With one, tracing appends a
        boolean tensor each time the optimizer is applied: whether all gradients are finite. If they
        are not, the optimizer changes no variable, not even `iterations`.
    """
    finite: list[tf.Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(keras_for_shards())
        stack.enter_context(patched(points.ASSIGN_ADD, _adding("assign_add")))
        stack.enter_context(patched(points.ASSIGN_SUB, _adding("assign_sub")))
        # The optimizer synchronizes all replicas here; an asynchronous worker does not.
        stack.enter_context(patched(points.MERGE_OF_OPTIMIZER, _at_once))
        for point in (points.APPLY, points.APPLY_WITH_SCALE, *points.APPLY_OF_SEVERAL):
            stack.enter_context(patched(point, partial(_built_apart, strategy=strategy)))
        scaled = keras.optimizers.LossScaleOptimizer
        stack.enter_context(patched(points.TF_APPLY_WITH_SCALE, lambda _: apply_alone(scaled)))
        stack.enter_context(patched(points.CHECK_FINITE, _noted(finite)))
        own = variables_of_own_metrics(model)
        for metric in model.metrics:
            added = partial(_by_adding, metric=metric, own=own, strategy=strategy)
            stack.enter_context(patched(points.UPDATE_METRIC, added, of=metric))
        yield finite


def _built_apart(original: Callable[..., Any], strategy: ParameterServer) -> Callable[..., Any]:
    """Returns a wrapper of an optimizer's `apply` that builds the optimizer outside of the graph.

    A step of the model's own may be the first to use an optimizer. In the graph of the step,
    TensorFlow could not make a slot, whose initial value would follow from what the graph does
    before.

    Args:
        original: The method.
        strategy: kfit's wrapper of the strategy, to whose devices the slots belong.
    """

    def apply(optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
        variables = None if trainable_variables is None else list(trainable_variables)
        if variables is not None and not optimizer.built:
            with tf.init_scope(), strategy.scope():
                optimizer.build(variables)
        return original(optimizer, grads, variables)

    return apply


def _at_once(_: Callable[..., Any]) -> Callable[..., Any]:
    """Replaces `maybe_merge_call`, by which an optimizer waits for all replicas, by a direct call.

    An asynchronous worker does not wait for other replicas.
    """
    return lambda fn, strategy, *args, **kwargs: fn(strategy, *args, **kwargs)


def _noted(results: list[tf.Tensor]) -> Callable[[Any], Any]:
    """Returns a wrapper of a method that also appends each result of the method to `results`."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            results.append(original(*args))
            return results[-1]

        return note

    return wrap


def _adding(method: str) -> Callable[[Any], Any]:
    """Returns a wrapper of `keras.Variable.assign_add` or `assign_sub`, for asynchronous workers.

    The wrapped method is one operation of the `tf.Variable`. Keras' own method reads the variable
    and then assigns the sum; in between, another worker could write. As in Keras, the method
    returns the new value.

    Args:
        method: The name of the operation: "assign_add" or "assign_sub".
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(variable: keras.Variable, value: Any) -> Any:
            placed = tf_variable(variable)
            if placed is None or in_stateless_scope():
                return original(variable, value)
            addend = tf.convert_to_tensor(value)
            if addend.dtype.is_floating and not placed.dtype.is_floating:
                return original(variable, value)  # the sum is rounded, not the addend
            addend = tf.broadcast_to(tf.cast(addend, placed.dtype), placed.shape)
            getattr(placed, method)(addend)
            return tf.convert_to_tensor(placed)  # now: what follows may change the variable again

        return add

    return wrap


def _by_adding(
    original: Callable[..., Any],
    metric: keras.Metric,
    own: Mapping[int, OwnVariable],
    strategy: ParameterServer,
) -> Callable[..., Any]:
    """Returns a wrapper of a metric's `update_state`, for asynchronous workers.

    The wrapped method adds to the metric's variables, so no update of another worker is lost. A
    variable of a user-written metric whose update does more than add gets the new value instead,
    with a warning if there are several workers.

    Args:
        original: The method.
        metric: The metric.
        own: The variables of user-written metrics, by their ids.
        strategy: kfit's wrapper of the strategy.
    """

    def update_state(*args: Any, **kwargs: Any) -> None:
        if in_stateless_scope():
            # A metric that contains this one is being updated, and adds this one's values, too.
            original(*args, **kwargs)
            return
        olds = [
            (
                v,
                tf.convert_to_tensor(tf_variable(v))
                if id(v) in own
                else tf.zeros(v.shape, v.dtype),
            )
            for v in metric.variables
        ]
        with keras.StatelessScope(state_mapping=olds) as scope:
            original(*args, **kwargs)
        for variable, old in olds:
            placed, value = tf_variable(variable), scope.get_current_value(variable)
            if id(variable) not in own:
                placed.assign_add(value)
                continue
            changes = changes_since(value, [old], [each for _, each in olds])
            if changes is None:
                placed.assign(value)
                if strategy.num_servers("worker") > 1:
                    warn_user(_advice(own[id(variable)].metric, variable))
            for change in changes or []:
                added = tf.broadcast_to(tf.cast(change.value, placed.dtype), placed.shape)
                (placed.assign_sub if change.is_taken else placed.assign_add)(added)

    return update_state


def _advice(name: str, variable: keras.Variable) -> str:
    return (
        f"The metric {name!r} does more with its variable {variable.name!r} than to add to it, as "
        "far as the graph shows (a maximum, a moving average, the last value, a ratio). The "
        "workers of the strategy 'parameter_server' do not wait for each other: if two of them "
        "update the variable at the same time, one update may be lost. Add sums to variables in "
        "`update_state`, and compute from them in `result`."
    )
