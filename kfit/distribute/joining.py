"""Joins a cluster before TensorFlow runs its first operation."""

from __future__ import annotations

import multiprocessing

from kfit.cluster.resolvers import current_cluster
from kfit.heartbeat.tracebacks import for_user


@for_user
def join_cluster(start_timeout: float | None = None) -> None:
    """Joins the cluster that this process was started in, before TensorFlow's first operation.

    Call it in the first lines of a program that is started on every task (process of the cluster)
    directly: by `python` with TF_CONFIG, or by `srun`. After the call, models and data sets can be
    made anywhere; those made earlier would become unusable, since TensorFlow renames the devices
    when it connects the tasks. Keras' own `fit` warns from then on that it trains on this task
    alone. Programs started by `kfit run` or `kfit.launch` need no call, since these join the
    cluster before the program begins.

    The call does nothing if there is no cluster or only one worker, if the process has joined
    already, and in tasks that do not run `fit`: an evaluator, a ps, a worker of a cluster with ps
    tasks. It also does nothing in a child process of `multiprocessing` that is importing the main
    module of its parent.

    Args:
        start_timeout: Seconds to wait for all tasks to start. After that time an error names the
            missing tasks. None takes the number in the environment variable KFIT_START_TIMEOUT, or
            60.

    Raises:
        ValueError: If `start_timeout` is not a positive number.
        ClusterError: If the description of the cluster is wrong, the port of this task is taken,
            another task does not start in time, or TensorFlow has already run an operation.
    """
    # Private, but it is how `multiprocessing` itself recognizes the import in a child process.
    if vars(multiprocessing.current_process()).get("_inheriting"):
        return
    cluster = current_cluster()
    if cluster is None or not cluster.joins:
        return
    # Imported only here, so that a process without a cluster does not import TensorFlow.
    from kfit.distribute.connection import is_connected
    from kfit.distribute.multi_worker import MultiWorker
    from kfit.distribute.parameter_server import ParameterServer
    from kfit.distribute.training_alone import warn_of_training_alone

    if not is_connected():
        kind = ParameterServer if cluster.has_ps else MultiWorker
        kind(cluster, start_timeout=start_timeout).tf_strategy  # noqa: B018  connects
    if cluster.num_workers > 1:
        warn_of_training_alone(cluster)
