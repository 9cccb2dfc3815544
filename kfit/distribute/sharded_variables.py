"""Patches of Keras and TensorFlow for variables that are split over several ps tasks.

A ps task (parameter server) stores variables. Where Keras has one variable, TensorFlow then has
several shards, each with a part of the rows. TensorFlow joins the shards when the variable is read,
and splits the value when it is assigned. The patches add the rest: gradients and updates of the
whole variable, and looking up some of its rows without reading all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import keras
import tensorflow as tf

from kfit.internals import patch_points as points
from kfit.internals.patching import patched
from kfit.internals.strategies import is_sharded
from kfit.internals.variables import tf_variable


@contextmanager
def keras_for_shards() -> Iterator[None]:
    """Context in which a step can use a sharded variable as if it were a whole one.

    A sharded variable is split over several ps tasks (parameter servers). The context is active
    while a training step is traced. In it, gradients of sharded variables can be computed, and
    embedding rows looked up.
    """
    with ExitStack() as stack:
        stack.enter_context(patched(points.GRADIENT, _gradient))
        stack.enter_context(patched(points.TAKE_ROWS, _take))
        yield


@contextmanager
def updates_of_shards(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Context in which an optimizer can be built for sharded variables, and can update them.

    A sharded variable is split over several ps tasks (parameter servers). When an optimizer creates
    its own variables (such as momenta) or updates a model's variable, methods of
    `strategy.extended` select the device of the model's variable. A sharded variable has no single
    device. So in the context these methods select no device for it.

    Args:
        strategy: The strategy whose methods are replaced.
    """

    def colocate_vars_with(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda value: nullcontext() if is_sharded(value) else original(value)

    def update(original: Callable[..., Any]) -> Callable[..., Any]:
        def updated(var: Any, fn: Any, args: Any = (), kwargs: Any = None, group: bool = True):  # type: ignore[no-untyped-def]
            if is_sharded(var):
                return fn(var, *args, **(kwargs or {}))
            return original(var, fn, args=args, kwargs=kwargs, group=group)

        return updated

    extended = strategy.extended
    with (
        patched(points.COLOCATE, colocate_vars_with, of=extended),
        patched(points.UPDATE, update, of=extended),
    ):
        yield


def _value(variable: Any) -> Any:
    """Returns the TensorFlow variable inside a Keras variable, or any other value unchanged."""
    return tf_variable(variable) if isinstance(variable, keras.Variable) else variable


def _gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `GradientTape.gradient` that accepts sharded variables.

    The replacement computes the gradients of the shards (the parts of the variable on several ps
    tasks), and joins them.

    Args:
        original: The method that is replaced.
    """

    def gradient(tape: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = [_value(leaf) for leaf in tf.nest.flatten(sources)]
        if not any(is_sharded(leaf) for leaf in leaves):
            return original(tape, target, sources, *args, **kwargs)
        parts = [list(leaf.variables) if is_sharded(leaf) else [leaf] for leaf in leaves]
        found = iter(original(tape, target, [p for part in parts for p in part], *args, **kwargs))
        whole = [
            _joined(leaf, [next(found) for _ in part]) if is_sharded(leaf) else next(found)
            for leaf, part in zip(leaves, parts, strict=True)
        ]
        return tf.nest.pack_sequence_as(sources, whole)

    return gradient


def _joined(sharded: Any, gradients: list[Any]) -> Any:
    """Returns the gradient of a sharded variable, joined from the gradients of its shards.

    A shard is a part of the variable's rows. The result is sparse (a `tf.IndexedSlices`) if no
    shard has a dense gradient, and None if no shard has a gradient at all.

    Args:
        sharded: The sharded variable.
        gradients: For each shard its gradient, or None if it has none.
    """
    if all(gradient is None for gradient in gradients):
        return None
    shards = list(sharded.variables)
    starts = [0]
    for shard in shards:
        starts.append(starts[-1] + int(shard.shape[0]))
    if all(gradient is None or isinstance(gradient, tf.IndexedSlices) for gradient in gradients):
        rows = [(g, start) for g, start in zip(gradients, starts, strict=False) if g is not None]
        return tf.IndexedSlices(
            tf.concat([gradient.values for gradient, _ in rows], 0),
            tf.concat(
                [
                    gradient.indices + tf.cast(start, gradient.indices.dtype)
                    for gradient, start in rows
                ],
                0,
            ),
            tf.constant([starts[-1], *sharded.shape[1:]], rows[0][0].indices.dtype),
        )
    return tf.concat(
        [
            tf.zeros(shard.shape, sharded.dtype)
            if gradient is None
            else tf.convert_to_tensor(gradient)
            for gradient, shard in zip(gradients, shards, strict=True)
        ],
        0,
    )


def _take(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of Keras' `take` that reads only the wanted rows of a sharded variable.

    An embedding layer looks up its rows by `take`. Keras' own `take` would read the whole variable
    from all ps tasks (parameter servers).

    Args:
        original: The function that is replaced.
    """

    def take(x: Any, indices: Any, axis: int | None = None) -> Any:
        value = _value(x)
        if not is_sharded(value) or axis != 0 or isinstance(indices, tf.SparseTensor):
            return original(x, indices, axis=axis)
        count = int(value.shape[0])

        def look_up(rows: tf.Tensor) -> tf.Tensor:
            rows = tf.where(rows < 0, rows + tf.cast(count, rows.dtype), rows)
            return tf.nn.embedding_lookup(list(value.variables), rows)

        if isinstance(indices, tf.RaggedTensor):
            return indices.with_flat_values(look_up(indices.flat_values))
        return look_up(tf.convert_to_tensor(indices))

    return take
