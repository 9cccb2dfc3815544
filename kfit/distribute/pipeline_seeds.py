"""What the graph of a tf.data pipeline tells about the order of its elements.

These are the seeds of operations that draw random numbers, and operations that keep no order.
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
"""Operations with a seed, and the names of their tf.data methods. Two zeros mean no seed."""


def scopes_of(definition: GraphDef) -> list[Sequence[NodeDef]]:
    """The operations of a graph, then those of each of its functions: node names are per scope."""
    return [definition.node, *(function.node_def for function in definition.library.function)]


def seeds_in(scope: Sequence[NodeDef]) -> list[tuple[str, tuple[int, ...]]]:
    """The operations with a seed, each as its tf.data method's name and its two seeds."""
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
    """Whether an operation was made with `deterministic=False`."""
    return node.attr["deterministic"].s == b"false"
