"""Finds what decides the order of a tf.data pipeline's elements, in the graph of the pipeline.

Two things do: the seeds of operations that draw random numbers, and operations that keep no order.
In this module a scope is the list of the operations of a graph, or of one function in the graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

_SEEDED = {
    "ShuffleDataset": "shuffle",
    "ShuffleAndRepeatDataset": "shuffle",
    "RandomDataset": "random",
}
"""Beginnings of the names of operations with two seeds, with the tf.data method of each. If both
seeds are 0, the user has set none."""


def scopes_of(definition: GraphDef) -> list[Sequence[NodeDef]]:
    """Returns one list of operations for a graph, and one for each function in the graph.

    The list of the main graph comes first. The lists are separate, since the name of an operation
    is unique only within its graph or function.
    """
    return [definition.node, *(function.node_def for function in definition.library.function)]


def seeds_in(scope: Sequence[NodeDef]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the seeds of the operations in a tf.data graph that draw random numbers.

    Two workers read a shuffled data set in the same order only if these seeds are equal.

    Args:
        scope: The operations of the graph, or of one function in the graph.

    Returns:
        For each operation the name of its tf.data method, such as "shuffle", and its two seeds. Two
        seeds of 0 mean that the user has set none.
    """
    constants = {
        node.name: node
        for node in scope
        if node.op == "Const" and node.attr["dtype"].type == tf.int64.as_datatype_enum
    }

    def value(name: str) -> int | None:
        node = constants.get(name.split(":")[0])
        return None if node is None else int(tf.make_ndarray(node.attr["value"].tensor))

    drawing = []
    for node in scope:
        for prefix, name in _SEEDED.items():
            if node.op.startswith(prefix):
                known = [v for v in map(value, node.input) if v is not None]
                drawing.append((name, tuple(known[-2:])))
    return drawing


def keeps_no_order(node: NodeDef) -> bool:
    """Returns whether an operation of a tf.data graph was made with `deterministic=False`.

    Such an operation may yield its elements in a different order in each run.
    """
    return node.attr["deterministic"].s == b"false"
