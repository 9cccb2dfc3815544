"""What can be asked of graphs: functions of `tf.compat.v1`, and what is a branch or a loop."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_BRANCHES = ("CondBranchFuncGraph", "WhileBodyFuncGraph", "WhileCondFuncGraph")
"""The classes of the graphs of `tf.cond` and `tf.while_loop`, which have no public names."""


def current_graph() -> Any:
    """Returns the graph that is being traced.

    If nothing is being traced, the result is TensorFlow's default graph, to which eager operations
    are not added.
    """
    return tf.compat.v1.get_default_graph()


def of_unknown_shape(tensor: tf.Tensor, shape: list[int | None]) -> tf.Tensor:
    """Returns a tensor with the same values, but with a less specific static shape.

    The graph then cannot treat as constants those dimensions that are None in the new static shape.

    Args:
        tensor: The tensor.
        shape: The static shape of the result, with None for each dimension that should be unknown.
    """
    return tf.compat.v1.placeholder_with_default(tensor, shape)


def is_within_branch(outer: Any) -> bool:
    """Returns whether what is traced now is a branch or a loop within a graph, or in one of these.

    Args:
        outer: The graph.
    """
    graph, found = current_graph(), False
    while graph is not None and graph is not outer:
        found = found or type(graph).__name__ in _BRANCHES
        graph = getattr(graph, "outer_graph", None)
    return found and graph is outer
