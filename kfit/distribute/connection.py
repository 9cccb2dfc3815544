"""Checks whether this process can still be connected to the other tasks of a cluster.

TensorFlow can connect a process only before its first operation, and renames the devices when it
does: models and data sets made earlier would become unusable.
"""

from __future__ import annotations

import contextlib

import tensorflow as tf

from kfit.cluster.cluster import Cluster, ClusterError
from kfit.cluster.resolvers import current_cluster
from kfit.internals.runtime import tensorflow_has_run


def is_connected() -> bool:
    """Returns whether TensorFlow has connected this process to other tasks.

    It does not matter whether kfit or the user's code has made TensorFlow do so.
    """
    if not tensorflow_has_run():
        return False
    # In a process that is not connected, device names have no job.
    return any("/job:" in device.name for device in tf.config.list_logical_devices())


def check_in_time(cluster: Cluster) -> None:
    """Checks that it is not too late to join a cluster.

    Args:
        cluster: The cluster, as seen by this task.

    Raises:
        ClusterError: If TensorFlow has run an operation in this process without connecting it.
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
