"""Decides how the workers of a cluster divide a data set among them."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.core.framework.graph_pb2 import GraphDef
from tensorflow.core.framework.node_def_pb2 import NodeDef

from kfit.distribute.pipeline_seeds import keeps_no_order, scopes_of, seeds_in
from kfit.distribute.strategy import Strategy
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.tf_data import spec_of_first_replica

_READERS = frozenset(
    {
        "FixedLengthRecordDataset",
        "FixedLengthRecordDatasetV2",
        "TFRecordDataset",
        "TFRecordDatasetV2",
        "TextLineDataset",
    }
)
"""The operations that TensorFlow shards by file, from its source file auto_shard.cc."""

_Policy = tf.data.experimental.AutoShardPolicy


def share(dataset: tf.data.Dataset, strategy: Strategy) -> tuple[Any, bool]:
    """Decides how the workers divide a data set, and returns what this worker iterates over.

    All workers must call it. A single worker gets the data set unchanged. With several workers, the
    `AutoShardPolicy` of the data set decides:

    - DATA, or AUTO if the pipeline does not read files by a data set such as `TFRecordDataset`:
      every worker runs the whole pipeline, and each replica takes its own rows of every global
      batch. These are the same rows as with TensorFlow's DATA sharding, but the workers need not
      ask each other in each step whether they still have data. A warning is given if the workers
      may read the examples in different orders.
    - AUTO if the pipeline reads files, and every other policy: TensorFlow shards the data set.

    Args:
        dataset: The data set, batched to the global batch size.
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.

    Returns:
        The data set to iterate over, and whether TensorFlow has sharded it. The elements of a data
        set that TensorFlow has sharded are per-replica values; otherwise they are global batches.
    """
    if strategy.num_workers == 1:
        return dataset, False
    policy = dataset.options().experimental_distribute.auto_shard_policy
    scopes = _scopes(dataset)
    reads_files = any(node.op in _READERS for scope in scopes for node in scope)
    if policy == _Policy.DATA or (policy == _Policy.AUTO and not reads_files):
        _warn_of_own_order(dataset, scopes, strategy)
        return dataset, False
    return strategy.distribute_dataset(dataset), True


def in_order(data: Any, strategy: Strategy) -> Any:
    """Returns data for a prediction, whose rows must keep their order on several workers.

    Of a data set that TensorFlow would shard by file, each worker predicts whole files of its own,
    so that the rows of one file come between those of another. With the policy AUTO such a data set
    is read by every worker instead, as with the policy DATA. With FILE and OFF the user has asked
    for parts.

    Args:
        data: What the user passed, which may be a data set.
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`.
    """
    if not isinstance(data, tf.data.Dataset) or strategy.num_workers == 1:
        return data
    if data.options().experimental_distribute.auto_shard_policy != _Policy.AUTO:
        return data
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = _Policy.DATA
    return data.with_options(options)


def _scopes(dataset: tf.data.Dataset) -> list[Sequence[NodeDef]]:
    """Returns the operations of a tf.data pipeline, such as those that shuffle or read files.

    The result is a list for the main graph, followed by one list for each function in the graph.
    """
    serialized = tf.raw_ops.DatasetToGraphV2(
        input_dataset=tf.data.experimental.to_variant(dataset),
        external_state_policy=1,  # ignore: the graph is inspected, never run
        strip_device_assignment=True,
    )
    return scopes_of(GraphDef.FromString(serialized.numpy()))


def _warn_of_own_order(
    dataset: tf.data.Dataset, scopes: Sequence[Sequence[NodeDef]], strategy: Strategy
) -> None:
    """Warns if the workers may read the examples of a data set in different orders.

    Each worker takes its own rows of every batch. If the orders differed, the workers would take
    rows of different batches: some examples would be used twice in an epoch, and others never. All
    workers must call this function, since it compares the seeds of their pipelines.

    Args:
        dataset: The data set.
        scopes: The operations of the data set, which `_scopes` returns.
        strategy: The adapter, by which the workers compare their seeds.
    """
    seeds = [found for scope in scopes for found in seeds_in(scope)]
    causes = [f"`{name}` without a seed" for name, pair in seeds if pair == (0, 0)]
    fingerprint = zlib.crc32(repr(seeds).encode())
    if len(set(strategy.host_collectives.all_gather([fingerprint])[:, 0])) > 1:
        causes += [f"`{name}` with another seed on each worker" for name, _ in seeds]
    if dataset.options().deterministic is False:
        causes.append("`tf.data.Options.deterministic=False`")
    if any(keeps_no_order(node) for scope in scopes for node in scope):
        causes.append("`deterministic=False`")
    if causes:
        warn_user(
            f"The data set has {' and '.join(causes)}: each worker sees the examples in an order "
            "of its own, so that some are repeated in an epoch and others are lost. Give a seed, "
            "call `tf.random.set_seed` with the same seed on all workers before the data set is "
            "made, or shard it yourself and set the auto-shard policy OFF."
        )


def is_distributed(value: Any) -> bool:
    """Returns whether `value` is a distributed data set of `tf.distribute`, or an iterator of one.

    The elements of such a data set are per-replica values: each replica gets its own part.
    """
    kinds = (tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)
    return isinstance(value, kinds) or type(value).__name__ == "DistributedDatasetsFromFunction"


def spec_of_replica(spec: Any) -> Any:
    """Returns the `tf.TypeSpec`s of the batch of one replica.

    Args:
        spec: The `element_spec` of a data set that a `tf.distribute` strategy has made, whose
            elements contain the batches of all replicas.
    """
    return tf.nest.map_structure(spec_of_first_replica, spec)
