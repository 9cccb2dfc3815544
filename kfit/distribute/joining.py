"""Joining a cluster before TensorFlow has run anything."""

from __future__ import annotations

import multiprocessing

from kfit.cluster.resolvers import current_cluster


def join_cluster(start_timeout: float | None = None) -> None:
    """Joins the cluster that this process was started in, before TensorFlow's first operation.

    TensorFlow connects a task to its peers only before the first operation of the process, and
    renames its devices when it does: a model or a data set made earlier would be lost. So this
    stands at the top of a program that is started by itself as every task of a cluster, by
    `python` with TF_CONFIG or by `srun`; after it, models and data sets can be made anywhere.
    `kfit run` and `kfit.launch` have joined before the program begins.

    It returns at once outside of a cluster, in a process that has joined, and in tasks that do not
    train: an evaluator, a ps, a worker of a cluster with ps. It does nothing either in a process of
    `multiprocessing` that is only importing the program of the one that started it.

    Args:
        start_timeout: Seconds to wait for all tasks to come up before naming the missing ones; None
            takes the environment's KFIT_START_TIMEOUT, or 60.

    Raises:
        ClusterError: The cluster's description is wrong, this task's port is taken, a peer does not
            come up, or TensorFlow has already run an operation.
    """
    # Private, but it is how `multiprocessing` itself knows that the main module is imported again.
    if vars(multiprocessing.current_process()).get("_inheriting"):
        return
    cluster = current_cluster()
    if cluster is None or not cluster.joins:
        return
    # Only here, so that a process which has nobody to join imports no TensorFlow.
    from kfit.distribute.connection import is_connected
    from kfit.distribute.multi_worker import MultiWorker
    from kfit.distribute.parameter_server import ParameterServer

    if not is_connected():
        kind = ParameterServer if cluster.has_ps else MultiWorker
        kind(cluster, start_timeout=start_timeout).tf_strategy  # noqa: B018  connects
