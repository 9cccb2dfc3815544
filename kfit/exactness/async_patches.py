"""Patches of Keras for asynchronous workers, which write to the same variables without waiting.

The patches are used with `ParameterServer`. Keras' `assign_add` reads a variable and then assigns
the sum. If another worker writes in between, the value of that worker is lost. So here counters
such as `optimizer.iterations`, and metrics, are updated by one add operation of the `tf.Variable`.
A metric's `update_state` starts from zeros on the worker, and the resulting values are added to the
metric's variables. That is right because Keras makes all variables of metrics with
`synchronization="on_read"` and `aggregation="sum"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.sharded_variables import keras_for_shards
from kfit.distribute.strategy import Strategy
from kfit.internals import patch_points as points
from kfit.internals.optimizers import apply_alone
from kfit.internals.patching import patched
from kfit.internals.variables import in_stateless_scope, tf_variable


@contextmanager
def keras_for_workers(model: keras.Model, strategy: Strategy) -> Iterator[list[tf.Tensor]]:
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
        for metric in model.metrics:
            stack.enter_context(patched(points.UPDATE_METRIC, _from_zeros(metric), of=metric))
        yield finite


def _built_apart(original: Callable[..., Any], strategy: Strategy) -> Callable[..., Any]:
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
    and then assigns the sum; in between, another worker could write.

    Args:
        method: The name of the operation: "assign_add" or "assign_sub".
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def add(variable: keras.Variable, value: Any) -> Any:
            placed = tf_variable(variable)
            if placed is None or in_stateless_scope():
                return original(variable, value)
            getattr(placed, method)(tf.cast(tf.convert_to_tensor(value), placed.dtype))
            return variable

        return add

    return wrap


def _from_zeros(metric: keras.Metric) -> Callable[[Any], Any]:
    """Returns a decorator for a metric's `update_state`, for asynchronous workers.

    The decorated method computes the update from zeros, and adds the result to the metric's
    variables. So no update of another worker is lost. During the update of a metric that contains
    this one, the original method is called, since the outer metric adds this one's values, too.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def update_state(*args: Any, **kwargs: Any) -> None:
            variables = list(metric.variables)
            if in_stateless_scope():
                # A metric that contains this one is being updated and will add this one's values
                # too.
                original(*args, **kwargs)
                return
            zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
            with keras.StatelessScope(state_mapping=zeros) as scope:
                original(*args, **kwargs)
            for variable in variables:
                tf_variable(variable).assign_add(scope.get_current_value(variable))

        return update_state

    return wrap
