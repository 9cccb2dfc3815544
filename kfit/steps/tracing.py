"""Chooses the graph for each batch size: the first two sizes get a graph each, others share one.

A graph with a static batch size is the fastest. But tracing a graph takes longer than most
evaluations, and calls with many different batch sizes would trace a graph each time. Two sizes are
enough for a `fit`: full batches, and the last batch. All further sizes share one graph, which takes
the size as an argument. If inner dimensions vary, such as lengths of texts, TensorFlow itself
replaces them by None (`reduce_retracing`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.inputs import BatchLayout, Segment

Build = Callable[..., Any]

_STATIC_SIZES = 2
"""Number of batch sizes that get a graph of their own."""


class GraphsBySize:
    """A cache of graphs: one for each of the first two batch sizes, and one for all further sizes.

    On several workers each size gets its own graph, because TensorFlow's collectives between
    workers need tensors of the same shape in all calls of a graph.

    Args:
        strategy: kfit's wrapper of the `tf.distribute` strategy on which the graphs run. If it
            needs static shapes, each size gets its own graph, too.
    """

    def __init__(self, strategy: Strategy) -> None:
        self._static = strategy.static_shapes
        self._shares = not self._static and strategy.num_workers == 1
        self._graphs: dict[tuple[BatchLayout, Build], Any] = {}
        self._shared: dict[tuple[BatchLayout, Build], Any] = {}
        self._sizes: dict[tuple[BatchLayout, Build], int] = {}
        self._latest: tuple[Build, Callable[[Segment], bool], Any] | None = None

    def latest(self, build: Build, segment: Segment) -> Any:
        """Returns the graph of the latest call if it also serves this call; otherwise None.

        `find` and the choice of TensorFlow among the shapes of the arguments take longer than the
        step of a small model.

        Args:
            build: The function that the graph is traced from.
            segment: The steps of this call. The graph serves it if it is the segment of the latest
                call, or if both have one element, a tuple of tensors of the same shapes.
        """
        if self._latest is None:
            return None
        built, serves, graph = self._latest
        return graph if built == build and serves(segment) else None

    def remember(self, build: Build, segment: Segment, graph: Any) -> None:
        """Keeps the graph of a call, as a concrete function, for `latest`.

        Args:
            build: The function that the graph is traced from.
            segment: The steps of the call.
            graph: The graph.
        """
        if segment.iterator is not None:
            own = weakref.ref(segment)
            self._latest = build, lambda other: own() is other, graph
        elif (form := _form(segment.element)) is not None:
            layout = segment.layout

            def serves(other: Segment) -> bool:
                return other.layout is layout and _form(other.element) == form

            self._latest = build, serves, graph

    def find(self, layout: BatchLayout, build: Build) -> Any:
        """Returns the graph of a function for batches of a certain layout, such as a certain size.

        Args:
            layout: A description of the batches.
            build: The function whose graph is returned. Its arguments are a layout, followed by any
                others. The graph has only the other arguments, since its layout is fixed.

        Returns:
            A callable with these other arguments. Like a `tf.function` it has
            `get_concrete_function`, and its first call traces the graph.
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


def _form(element: Any) -> list[Any] | None:
    """Returns the shapes and dtypes of a tuple of tensors; None if `element` is something else."""
    if type(element) is not tuple or not all(isinstance(part, tf.Tensor) for part in element):
        return None
    return [(part.shape, part.dtype) for part in element]


def _shared_graph(layout: BatchLayout, build: Build) -> Any:
    """Returns one graph of a function for batches of all sizes.

    Args:
        layout: A description of the batches, without their size.
        build: The function, which is called as `build(layout, *arguments)`.

    Returns:
        A `tf.function`. It takes the number of examples, the row of the global batch at which this
        task's part begins, and then `arguments`.
    """

    def sized(examples: tf.Tensor, offset: tf.Tensor, *arguments: Any) -> Any:
        return build(replace(layout, examples=examples, offset=offset), *arguments)

    return tf.function(sized, autograph=False, reduce_retracing=True)


class _Sized:
    """The graph that all further batch sizes share, with one size filled in.

    So the graph can be called like a graph of that size alone. The object has the methods and
    attributes of a `tf.function`, and of a concrete function, that kfit uses.

    Args:
        graph: The `tf.function` that `_shared_graph` has returned.
        layout: A description of the batches, with the size to fill in.
    """

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
        """Traces the graph for these arguments, unless it is traced already.

        Returns:
            This object itself, since it can be called with `arguments` like a concrete function.
        """
        traced = self._graph.get_concrete_function(*self._size, *map(opened, arguments))
        self.structured_outputs, self.graph = traced.structured_outputs, traced.graph
        return self


def of_any_size(layout: BatchLayout) -> BatchLayout:
    """Returns a description of batches without their size, for the graph that all sizes share.

    The result also lacks the row at which this task's part of a batch begins.
    """
    return replace(layout, examples=None, offset=0)


def opened(value: Any) -> Any:
    """Returns the spec of a batch or of an iterator of batches, with None for the number of rows.

    The graph for batches of all sizes is traced with such specs.

    Args:
        value: A batch (a tensor or a tuple), an iterator, or a spec of these. Anything else is
            returned unchanged.
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
