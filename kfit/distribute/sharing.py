"""How a data set is shared by the workers of a cluster."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef

from kfit.distribute.strategy import Strategy

_READERS = frozenset(
    {
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "TFRecordDataset",
        "TFRecordDatasetV2",
        "TextLineDataset",
    }
)
"""Operations that TensorFlow shards by file (reader ops of its auto_shard.cc)."""

_Policy = tf.data.experimental.AutoShardPolicy


def share(dataset: tf.data.Dataset, strategy: Strategy) -> tuple[Any, bool]:
    """The data set as this task reads it.

    Under the DATA policy every worker runs the whole pipeline and each replica takes its rows of
    every global batch. That is what TensorFlow's sharding by DATA comes to, without asking the
    other workers in each step whether they still have data. FILE and OFF, and AUTO over files,
    need TensorFlow's own machinery.

    Args:
        dataset: Batched to the global batch size.
        strategy: The adapter.

    Returns:
        What to iterate over, and whether its elements are per-replica values already.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if strategy.num_workers == 1 or policy == _Policy.DATA:
        return dataset, False
    if policy == _Policy.AUTO and not reads_files(dataset):
        return dataset, False
    return strategy.distribute_dataset(dataset), True


def reads_files(dataset: tf.data.Dataset) -> bool:
    """Whether the pipeline reads files, so that TensorFlow's AUTO shards it by FILE."""
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=1,  # ignore: the graph is looked at, never run
        strip_device_assignment=True,
    )
    graph = GraphDef.FromString(serialized.numpy())
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return any(node.op in _READERS for node in nodes)


def is_distributed(value: Any) -> bool:
    """Whether `value` is a data set of per-replica values, as the adapter's verbs make them."""
    kinds = (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)
    return isinstance(value, kinds) or type(value).__name__ == "DistributedDatasetsFromFunction"


def spec_of_replica(spec: Any) -> Any:
    """The spec of one replica's batch out of the element spec of a distributed data set."""
    return tf.nest.map_structure(
        lambda leaf: leaf._value_specs[0] if hasattr(leaf, "_value_specs") else leaf, spec
    )
