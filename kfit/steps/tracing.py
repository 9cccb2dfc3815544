"""Graphs by the sizes of batches: static ones at first, one for all sizes when sizes vary.

A graph that knows the size of its batches is the fastest, and needs no collective to learn it. But
tracing takes longer than most evaluations, and who evaluates this and that brings a new size each
time. So the first sizes get graphs of their own, as many as a `fit` has (full batches and the last
one), and all others share one that is told the size. Lengths within the examples that vary are left
open by TensorFlow, from the second one on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.inputs import BatchLayout

Build = Callable[..., Any]

_STATIC_SIZES = 2
"""Sizes of batches that get a graph of their own."""


class GraphsBySize:
    """Traces functions of a layout and data.

    On several workers sizes are not shared: in one graph TensorFlow's collectives between them take
    tensors of one shape.

    Args:
        strategy: The adapter; with static shapes all graphs are.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._static = strategy.static_shapes
        self._shares = not self._static and strategy.num_workers == 1
        self._graphs: dict[tuple[BatchLayout, Build], Any] = {}
        self._shared: dict[tuple[BatchLayout, Build], Any] = {}
        self._sizes: dict[tuple[BatchLayout, Build], int] = {}

    def find(self, layout: BatchLayout, build: Build) -> Any:
        """The graph that `build(layout, *arguments)` makes.

        Returns:
            Something to call with the arguments, or to ask for a concrete function, as a
            `tf.function`; it is traced at the first call.
        """
        if (layout, build) in self._graphs:
            return self._graphs[layout, build]
        shared = of_any_size(layout), build
        known = self._sizes.get(shared, 0)
        if not self._shares or layout.examples is None or known < _STATIC_SIZES:
            self._sizes[shared] = known + 1
            graph: Any = tf.function(
                partial(build, layout), autograph=False, reduce_retracing=not self._static
            )
            self._graphs[layout, build] = graph
            return graph
        if shared not in self._shared:
            self._shared[shared] = _shared_graph(*shared)
        return _Sized(self._shared[shared], layout)


def _shared_graph(layout: BatchLayout, build: Build) -> Any:
    """One graph for batches of all sizes, which are arguments like the data."""

    def sized(examples: tf.Tensor, offset: tf.Tensor, *arguments: Any) -> Any:
        return build(replace(layout, examples=examples, offset=offset), *arguments)

    return tf.function(sized, autograph=False, reduce_retracing=True)


class _Sized:
    """The graph for all sizes, called with one of them."""

    def __init__(self, graph: Any, layout: BatchLayout) -> None:
        self._graph = graph
        self._size = [tf.constant(n, tf.int64) for n in (layout.examples, layout.offset)]
        self.structured_outputs: Any = None
        self.graph: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.structured_outputs is None:
            self.get_concrete_function(*arguments)
        return self._graph(*self._size, *arguments)

    def get_concrete_function(self, *arguments: Any) -> _Sized:
        """Traces it where no call has; what takes the arguments, and knows its graph."""
        traced = self._graph.get_concrete_function(*self._size, *map(opened, arguments))
        self.structured_outputs, self.graph = traced.structured_outputs, traced.graph
        return self


def of_any_size(layout: BatchLayout) -> BatchLayout:
    """The layout but for the size of the batch."""
    return replace(layout, examples=None, offset=0)


def opened(value: Any) -> Any:
    """The spec of a batch, of an iterator over some or of a spec, with the number of rows open."""
    if isinstance(value, tf.data.Iterator):
        return type(tf.type_spec_from_value(value))(opened(value.element_spec))
    if isinstance(value, tuple):
        return tuple(opened(part) for part in value)
    if isinstance(value, tf.Tensor) and value.shape.rank:
        value = tf.TensorSpec.from_tensor(value)
    if isinstance(value, tf.TensorSpec) and value.shape.rank:
        return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
    return value
