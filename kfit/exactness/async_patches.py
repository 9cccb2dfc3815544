"""Keras' functions for workers that write to the same variables without waiting for each other.

Where Keras reads a variable and assigns the sum, another worker may have written in between, and
its part is lost. What only adds up is therefore added by the variable itself, at once: counts such
as `optimizer.iterations`, and the metrics. A metric's update starts from zeros on the worker, as on
a replica of its own, and what it comes to is added to the metric (`synchronization="on_read"`,
`aggregation="sum"`, as Keras makes every variable of a metric).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.sharded_variables import keras_for_shards
from kfit.internals import patch_points as points
from kfit.internals.optimizers import apply_alone
from kfit.internals.patching import patched
from kfit.internals.variables import in_stateless_scope, tf_variable


@contextmanager
def keras_for_workers(model: keras.Model) -> Iterator[list[tf.Tensor]]:
    """Within it a step of `model` that is traced may run beside others.

    Yields:
        A list to which the step that is traced adds, where it scales its loss, whether the
        gradients are finite: where they are not, it changes no variable and does not count.
    """
    finite: list[tf.Tensor] = []
    with ExitStack() as stack:
        stack.enter_context(keras_for_shards())
        stack.enter_context(patched(points.ASSIGN_ADD, _adding("assign_add")))
        stack.enter_context(patched(points.ASSIGN_SUB, _adding("assign_sub")))
        # Where the optimizer has all replicas meet; a worker is by itself.
        stack.enter_context(patched(points.MERGE_OF_OPTIMIZER, _at_once))
        scaled = keras.optimizers.LossScaleOptimizer
        stack.enter_context(patched(points.TF_APPLY_WITH_SCALE, lambda _: apply_alone(scaled)))
        stack.enter_context(patched(points.CHECK_FINITE, _noted(finite)))
        for metric in model.metrics:
            stack.enter_context(patched(points.UPDATE_METRIC, _from_zeros(metric), of=metric))
        yield finite


def _at_once(_: Callable[..., Any]) -> Callable[..., Any]:
    """`maybe_merge_call` where there is nobody to wait for."""
    return lambda fn, strategy, *args, **kwargs: fn(strategy, *args, **kwargs)


def _noted(results: list[tf.Tensor]) -> Callable[[Any], Any]:
    """A method whose results are also put into a list."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            results.append(original(*args))
            return results[-1]

        return note

    return wrap


def _adding(method: str) -> Callable[[Any], Any]:
    """`assign_add` or `assign_sub` of a Keras variable as one operation of the variable."""

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
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def update_state(*args: Any, **kwargs: Any) -> None:
            variables = list(metric.variables)
            if in_stateless_scope():
                # The metric that this one is part of adds up for it.
                original(*args, **kwargs)
                return
            zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in variables]
            with keras.StatelessScope(state_mapping=zeros) as scope:
                original(*args, **kwargs)
            for variable in variables:
                tf_variable(variable).assign_add(scope.get_current_value(variable))

        return update_state

    return wrap
