"""Finds what a graph changes that is no variable, and so cannot be read or saved.

This is the position of a random operation in its sequence of random numbers. It is also what
tables, iterators and queues of TensorFlow hold, if they were made outside of the graph.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework.node_def_pb2 import NodeDef

from kfit.internals.graphs import changed_captures

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

_CHANGES = (
    *("IteratorGetNext", "MultiDeviceIteratorGetNext"),
    *("LookupTableInsert", "LookupTableRemove", "LookupTableImport"),
    *("QueueEnqueue", "QueueDequeue", "QueueClose", "StackPush", "StackPop", "Barrier"),
    *("ReaderRead", "AccumulatorApply", "AccumulatorTake"),
    *("ResourceAccumulatorApply", "ResourceAccumulatorTake"),
)
"""What the types of operations begin with that change a table, an iterator or a queue."""


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


def changed_objects(graph: Any) -> list[tuple[tf.Tensor, str]]:
    """Returns the tables, iterators and queues outside of a graph that its operations change.

    kfit warns of them, since they begin anew after a restart.

    Returns:
        For each, the tensor by which graphs refer to it, and the type of the operation.
    """
    return changed_captures(graph, _CHANGES)
