"""Traces graphs by batch size: static sizes first, then one graph for all sizes.

A graph with a static batch size is the fastest, and needs no collective to learn the size. But
tracing takes longer than most evaluations, and calls with many different batch sizes would trace
again each time. So the first two sizes get graphs of their own (a `fit` has two: full batches and
the last one). All further sizes share one graph, which takes the size as an argument. Inner
dimensions that vary, such as lengths, are relaxed to None by TensorFlow (`reduce_retracing`).
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
"""Number of batch sizes that get a graph of their own."""


class GraphsBySize:
    """Traces and caches functions of a layout and data.

    On several workers each size gets its own graph, because TensorFlow's collectives between
    workers need tensors of the same shape in all calls of a graph.

    Args:
        strategy: The adapter; if it needs static shapes, each size gets its own graph too.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._static = strategy.static_shapes
        self._shares = not self._static and strategy.num_workers == 1
        self._graphs: dict[tuple[BatchLayout, Build], Any] = {}
        self._shared: dict[tuple[BatchLayout, Build], Any] = {}
        self._sizes: dict[tuple[BatchLayout, Build], int] = {}

    def find(self, layout: BatchLayout, build: Build) -> Any:
        """The graph of `build(layout, *arguments)`.

        Returns:
            A callable that takes `arguments` and has `get_concrete_function`, as a `tf.function`
            has. The first call traces it.
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
    """One graph for batches of all sizes; its first arguments are the size and the offset."""

    def sized(examples: tf.Tensor, offset: tf.Tensor, *arguments: Any) -> Any:
        return build(replace(layout, examples=examples, offset=offset), *arguments)

    return tf.function(sized, autograph=False, reduce_retracing=True)


class _Sized:
    """The graph for all sizes, bound to one size."""

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
        """Traces the graph unless a call has; returns itself, which takes `arguments` alone."""
        traced = self._graph.get_concrete_function(*self._size, *map(opened, arguments))
        self.structured_outputs, self.graph = traced.structured_outputs, traced.graph
        return self


def of_any_size(layout: BatchLayout) -> BatchLayout:
    """The layout without the size of the batch."""
    return replace(layout, examples=None, offset=0)


def opened(value: Any) -> Any:
    """The spec of a batch, an iterator or a spec, with None for the number of rows."""
    if isinstance(value, tf.data.Iterator):
        return type(tf.type_spec_from_value(value))(opened(value.element_spec))
    if isinstance(value, tuple):
        return tuple(opened(part) for part in value)
    if isinstance(value, tf.Tensor) and value.shape.rank:
        value = tf.TensorSpec.from_tensor(value)
    if isinstance(value, tf.TensorSpec) and value.shape.rank:
        return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
    return value
