"""Measures in the graph of an execution how long its steps wait for their data.

An execution is one graph call of several steps. Python cannot see what happens within it, so the
graph itself reads the time: before it asks for a batch, when it has got the batch, and when the
step has ended. TensorFlow may draw the next batch while a step still runs. So a step has waited
only from the end of the step before it, and only if its batch came later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.exactness.rows import rows_of_element

Tensor = Any


class Measures(NamedTuple):
    """What the steps of an execution have measured so far, as tensors of the graph.

    Attributes:
        waited: The time in seconds in which steps waited for their data.
        rows: The number of examples of the elements: of the global batches, or of this task's
            parts of them.
        ended: The time at which the last step has ended, in seconds since 1970.
    """

    waited: Tensor
    rows: Tensor
    ended: Tensor


class Drawn(NamedTuple):
    """A batch, and when the graph has asked for it and got it, in seconds since 1970."""

    element: Any
    asked: Tensor
    got: Tensor


def begin() -> Measures:
    """Returns the measures before the first step of an execution."""
    return Measures(tf.constant(0.0, tf.float64), tf.constant(0, tf.int64), tf.timestamp())


def draw(next_element: Callable[[], Any], ready: Callable[[Any], Any]) -> Drawn:
    """Draws an element, and reads the time before and after.

    Args:
        next_element: The function that draws the element.
        ready: A function of the element. It returns tensors that exist as soon as the element is
            drawn.
    """
    asked = tf.timestamp()
    with tf.control_dependencies([asked]):
        element = next_element()
    with tf.control_dependencies(tf.nest.flatten(ready(element), expand_composites=True)):
        got = tf.timestamp()
    return Drawn(element, asked, got)


def after_step(
    measures: Measures, drawn: Drawn, rows: Tensor, take: Callable[[], Any]
) -> tuple[Any, Measures]:
    """Takes a step on a drawn batch, and adds to the measures.

    Args:
        measures: The measures before the step.
        drawn: The batch of the step.
        rows: The number of examples of the batch, or a function of the step's results that returns
            it.
        take: The function that takes the step.

    Returns:
        The result of `take`, and the measures after the step.
    """
    graph = drawn.got.graph
    before = len(graph.get_operations())
    result = take()
    made = graph.get_operations()[before:]
    # The step has ended when it has changed all its variables.
    with tf.control_dependencies([each for each in made if each.op_def.is_stateful]):
        ended = tf.timestamp()
    waited = drawn.got - tf.maximum(drawn.asked, measures.ended)
    count = rows(result) if callable(rows) else rows
    return result, Measures(measures.waited + tf.maximum(waited, 0.0), measures.rows + count, ended)


def rows_of(element: Any, strategy: Strategy) -> Tensor:
    """Returns the number of examples of an element, as an int64 scalar or an int.

    Args:
        element: A batch, or this task's part of one. Its tensors may be per-replica values.
        strategy: The adapter, kfit's wrapper of the `tf.distribute` strategy.
    """
    locals_of_leaves = map(strategy.local_results, tf.nest.flatten(element))
    parts = zip(*locals_of_leaves, strict=True)
    return tf.add_n([tf.cast(rows_of_element(part), tf.int64) for part in parts])
