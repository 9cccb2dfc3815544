"""Finds in the graph of a tf.data pipeline what decides the order of the pipeline's elements.

That is the seeds of operations that draw random numbers, and operations that keep no order. In this
module a scope is the list of the operations of a graph, or of one function in the graph.
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
"""The beginnings of the names of operations that take two seeds, and their tf.data methods. If both
seeds are 0, the user has set none."""


def scopes_of(definition: GraphDef) -> list[Sequence[NodeDef]]:
    """Returns the operations of a graph, and then those of each of its functions.

    They are separate lists, since names of operations are unique only within one of them.
    """
    return [definition.node, *(function.node_def for function in definition.library.function)]


def seeds_in(scope: Sequence[NodeDef]) -> list[tuple[str, tuple[int, ...]]]:
    """Returns the operations of a scope that take seeds.

    Each is given by the name of its tf.data method, such as "shuffle", and its two seeds, which are
    the last two constants among its inputs.
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
    """Returns whether an operation was made with `deterministic=False`."""
    return node.attr["deterministic"].s == b"false"
