"""State in a traced graph that cannot be read: the positions of stateful random operations."""

from __future__ import annotations

from typing import Any

from tensorflow.core.framework.node_def_pb2 import NodeDef

DRAWS = frozenset(
    {
        "RandomUniform",
        "RandomUniformInt",
        "RandomStandardNormal",
        "TruncatedNormal",
        "ParameterizedTruncatedNormal",
        "RandomShuffle",
        "RandomGamma",
        "RandomPoissonV2",
        "Multinomial",
        "SampleDistortedBoundingBoxV2",
    }
)
"""TensorFlow's random operations whose position is inside the graph, where it can't be saved."""


def nodes_of(graph: Any) -> list[NodeDef]:
    """Every operation of a `tf.Graph`, those of its functions included."""
    definition = graph.as_graph_def()
    functions = definition.library.function
    return [*definition.node, *(node for function in functions for node in function.node_def)]


def drawing_operations(graph: Any) -> list[str]:
    """The types of the operations in a graph that are among `DRAWS`, sorted."""
    return sorted({node.op for node in nodes_of(graph) if node.op in DRAWS})
