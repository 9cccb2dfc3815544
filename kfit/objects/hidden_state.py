"""Finds those random operations of a graph that keep a state which cannot be read or saved.

The state of such an operation is its position in its sequence of random numbers.
"""

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
    """Returns every operation of a `tf.Graph`, including those of its functions."""
    definition = graph.as_graph_def()
    functions = definition.library.function
    return [*definition.node, *(node for function in functions for node in function.node_def)]


def drawing_operations(graph: Any) -> list[str]:
    """Returns the sorted types of a graph's random operations whose state cannot be saved.

    kfit warns of these operations, since they draw other numbers after a restart.
    """
    return sorted({node.op for node in nodes_of(graph) if node.op in DRAWS})
