"""Warns if a step writes to TensorBoard what it computes from a replica's examples."""

from __future__ import annotations

import tensorflow as tf

from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.replica_context import Replica, Step
from kfit.internals.graphs import BRANCHES, CALLS, LOOPS, current_graph, graphs_called_by
from kfit.internals.variables import tf_variable

_WRITES = {
    *("WriteSummary", "WriteScalarSummary", "WriteHistogramSummary", "WriteImageSummary"),
    "WriteAudioSummary",
}


def warn_of_summaries(replica: Replica, step: Step) -> None:
    """Warns if what a step gives to `tf.summary` is that of one replica's examples.

    TensorFlow writes the summaries of the first replica only. Values that are equal on all
    replicas, such as a learning rate, weights or sums over all replicas, are those of one device.

    Args:
        replica: The replica whose step has just been traced.
        step: The step.
    """
    if not replica.can_be_read or replica.index != step.strategy.first_local_replica:
        return
    writes = [op for op in current_graph().get_operations() if _writes_summaries(op)]
    if not writes:
        return
    own = [v for v, _ in replica.assigned.values() if is_per_replica(v)]
    handles = [copy.handle for v in own for copy in step.strategy.local_results(tf_variable(v))]
    if any(replica.origins.is_own(each, handles) for op in writes for each in op.inputs):
        replica.warn(
            "The step gives to `tf.summary` what it computes from the examples of a replica. "
            "TensorFlow writes the value of the first replica only, which has a part of the batch, "
            "so that what TensorBoard shows depends on how many replicas there are. Return the "
            "value from `train_step`, or update a metric by it, for a callback to write; or write "
            'a sum over all replicas, by `tf.distribute.get_replica_context().all_reduce("sum", '
            "value)`."
        )


def _writes_summaries(op: tf.Operation) -> bool:
    """Returns whether an operation, or a function that it calls, writes to `tf.summary`."""
    if op.type not in LOOPS | BRANCHES | CALLS:
        return op.type in _WRITES
    graphs = graphs_called_by(op)
    return any(_writes_summaries(each) for graph in graphs for each in graph.get_operations())
