"""What a graph of tf.data says of the order of its elements: seeds, and parts that keep none."""

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
"""Operations that draw from a seed, by their names in graphs; no seed reads as two zeros."""


def scopes_of(definition: GraphDef) -> list[Sequence[NodeDef]]:
    """The operations of a graph, and those of each of its functions: names are known within one."""
    return [definition.node, *(function.node_def for function in definition.library.function)]


def seeds_in(scope: Sequence[NodeDef]) -> list[tuple[str, tuple[int, ...]]]:
    """The operations that draw, by the names users know, each with its two seeds."""
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
    """Whether an operation was told `deterministic=False`."""
    return node.attr["deterministic"].s == b"false"
