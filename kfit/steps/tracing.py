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
    """A cache of graphs: one for each of the first batch sizes, and one for all further sizes.

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
        """Returns the graph of the function `build` for a layout.

        Args:
            layout: The layout of the batches.
            build: Called as `build(layout, *arguments)` to trace the graph.

        Returns:
            A callable that takes `arguments` and has `get_concrete_function`, as a `tf.function`
            has. Its first call traces the graph.
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
    """Returns one graph for batches of all sizes.

    Its first two arguments are `examples` and `offset` of the layout.
    """

    def sized(examples: tf.Tensor, offset: tf.Tensor, *arguments: Any) -> Any:
        return build(replace(layout, examples=examples, offset=offset), *arguments)

    return tf.function(sized, autograph=False, reduce_retracing=True)


class _Sized:
    """The graph for all batch sizes, bound to one size."""

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
        """Traces the graph, unless it is traced already.

        Returns:
            This object, which can be called with `arguments` as a concrete function can.
        """
        traced = self._graph.get_concrete_function(*self._size, *map(opened, arguments))
        self.structured_outputs, self.graph = traced.structured_outputs, traced.graph
        return self


def of_any_size(layout: BatchLayout) -> BatchLayout:
    """Returns the layout without the size of the batch, and without the offset."""
    return replace(layout, examples=None, offset=0)


def opened(value: Any) -> Any:
    """Returns the spec of a batch or an iterator, with None for the number of rows.

    A spec may be given, too. Anything else is returned unchanged.
    """
    if isinstance(value, tf.data.Iterator):
        return type(tf.type_spec_from_value(value))(opened(value.element_spec))
    if isinstance(value, tuple):
        return tuple(opened(part) for part in value)
    if isinstance(value, tf.Tensor) and value.shape.rank:
        value = tf.TensorSpec.from_tensor(value)
    if isinstance(value, tf.TensorSpec) and value.shape.rank:
        return tf.TensorSpec([None, *value.shape[1:]], value.dtype)
    return value
