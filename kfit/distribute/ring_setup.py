"""Connects the workers in a ring, once TensorFlow has connected them, and gives them one seed.

The ring (`Ring`) consists of kfit's own connections between workers on CPUs. The workers use the
ring to sum. The seed is the random seed that the chief proposes. It makes data sets that are
shuffled without a seed have the same order on all workers.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kfit.cluster.cluster import Cluster, ClusterError, split_address
from kfit.cluster.sockets import explain
from kfit.distribute.ring import Ring
from kfit.distribute.ring_connections import Listener, connect

# Seconds for neighbours to connect; all have just taken part in a collective, so all are up.
_CALL_LIMIT = 10.0


class RingSetup(NamedTuple):
    """The result of `set_up_ring`.

    Attributes:
        seed: The random seed that the chief has proposed, equal on all workers. It makes data sets
            that are shuffled without a seed have the same order on all workers.
        ring: The connections by which this worker sums with the others; None if TensorFlow's
            collectives must be used instead.
        failure: The reason why the workers could not be connected. It is empty if they are
            connected, and also if not all workers wanted a ring.
    """

    seed: int
    ring: Ring | None
    failure: str


def set_up_ring(
    cluster: Cluster,
    strategy: tf.distribute.Strategy,
    seed: int,
    *,
    by_sockets: bool,
    timeout: float | None,
) -> RingSetup:
    """Connects the workers in a ring, by kfit's own sockets, and gives all workers the same seed.

    Called when a worker joins its cluster; all workers must call it at the same time. The ring is
    used to sum over workers on CPUs. The seed makes data sets that are shuffled without a seed have
    the same order on all workers.

    Args:
        cluster: The cluster, which also tells which of its tasks this process is.
        strategy: TensorFlow's strategy, which is connected to the other workers already.
        seed: The random seed that this worker proposes. All workers get the seed of the chief.
        by_sockets: Whether this worker can use kfit's sockets, and the user allows it. The ring is
            set up only if this is True on all workers.
        timeout: Seconds that a later sum waits for another worker before it raises an error; None
            waits for ever.

    Returns:
        The seed of the chief, and this worker's connections in the ring. If the workers could not
        be connected, the result says why.

    Raises:
        ClusterError: If the operating system gives no port to listen on, or a worker ends
            meanwhile.
    """
    workers = cluster.workers
    with ExitStack() as stack:
        listener = stack.enter_context(Listener(cluster)) if by_sockets else None
        own = [seed, listener.port, listener.token] if listener else [seed, 0, 0]
        rows = _gathered(strategy, own, len(workers))
        seed = rows[0][0]
        if listener is None or not all(port for _, port, _ in rows):
            return RingSetup(seed, None, "")
        connected = _connected(cluster, rows)
        failed = _gathered(strategy, [int(isinstance(connected, str))], len(workers))
        names = [str(task) for (task, _), (bad,) in zip(workers, failed, strict=True) if bad]
        if isinstance(connected, str):
            return RingSetup(seed, None, connected)
        if names:
            connected.close()
            return RingSetup(seed, None, f"{', '.join(names)} cannot reach the next worker")
        index = cluster.worker_index
        try:
            left = listener.accept(_CALL_LIMIT)
        except OSError as error:
            raise ClusterError(
                f"{workers[index - 1][0]} has left while the workers were being connected: {error}"
            ) from error
    ring = Ring(index, [str(task) for task, _ in workers], left, connected, timeout)
    return RingSetup(seed, ring, "")


def _gathered(
    strategy: tf.distribute.Strategy, own: Sequence[int], workers: int
) -> list[list[int]]:
    """Gathers integers from all workers by TensorFlow's collectives; all workers must call it.

    Args:
        strategy: TensorFlow's strategy, connected to the workers.
        own: The integers of this worker, equally many on each worker.
        workers: The number of workers.

    Returns:
        The integers of each worker, in the order of the workers.
    """
    replicas = strategy.num_replicas_in_sync

    @tf.function(autograph=False)
    def gathered(own: tf.Tensor) -> tf.Tensor:
        def on_replica(own: tf.Tensor) -> tf.Tensor:
            replica = tf.distribute.get_replica_context()
            slot = tf.one_hot(replica.replica_id_in_sync_group, replicas, dtype=tf.int64)
            return replica.all_reduce(tf.distribute.ReduceOp.SUM, slot[:, None] * own)

        return strategy.experimental_local_results(strategy.run(on_replica, (own,)))[0]

    table = np.asarray(gathered(tf.constant(own, tf.int64)))
    return [[int(number) for number in row] for row in table[:: replicas // workers]]


def _connected(cluster: Cluster, rows: Sequence[Sequence[int]]) -> socket.socket | str:
    """Connects this worker to the next one in the ring.

    Args:
        cluster: The cluster, which also tells which of its tasks this process is.
        rows: For each worker its seed, and the port and the token of its `Listener`.

    Returns:
        The connection; if the next worker cannot be reached, the reason as a text.
    """
    index, workers = cluster.worker_index, cluster.workers
    task, address = workers[(index + 1) % len(workers)]
    _, port, token = rows[(index + 1) % len(workers)]
    try:
        return connect(address, port, token, index, _CALL_LIMIT)
    except OSError as error:
        host, _ = split_address(address)
        reason, _ = explain(error, host)
        return f"{cluster.task} cannot reach {task} at port {port} of {host}: {reason}"
