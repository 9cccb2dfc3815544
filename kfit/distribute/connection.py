"""Checks whether this process can still be connected to the other tasks of a cluster.

A task is one process of a cluster. TensorFlow can connect a process only before the first operation
of the process.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

from kfit.cluster.cluster import Cluster, ClusterError
from kfit.cluster.resolvers import current_cluster
from kfit.internals.runtime import tensorflow_has_run


def is_connected() -> bool:
    """Returns whether TensorFlow has connected this process to the other processes of a cluster.

    The result does not depend on whether kfit or the user's code has made the connection.
    """
    if not tensorflow_has_run():
        return False
    # In a process that is not connected, device names have no job.
    return any("/job:" in device.name for device in tf.config.list_logical_devices())


def check_in_time(cluster: Cluster) -> None:
    """Checks that this process can still join a cluster, before it tries to do so.

    TensorFlow can connect a process to a cluster only before the first operation of the process.

    Args:
        cluster: The cluster that this process belongs to.

    Raises:
        ClusterError: If TensorFlow has run an operation in this process, and has not connected the
            process.
    """
    if not tensorflow_has_run() or is_connected():
        return
    described = None
    with contextlib.suppress(ClusterError):
        described = current_cluster()
    fix = (
        "Write `import kfit; kfit.join_cluster()` as the first lines of the program, or start it "
        "with `kfit run`."
        if described == cluster
        else "Make the strategy in the first lines of the program, and ask for its `tf_strategy` "
        "there, which connects."
    )
    raise ClusterError(
        f"{cluster.task} cannot join its cluster any more: TensorFlow already ran an operation (a "
        "model, a tensor or a data set was made), and it connects a task to the others only before "
        f"the first one. {fix}"
    )
