"""Joining a cluster at the start of a process."""

from __future__ import annotations

from kfit.cluster.resolvers import current_cluster
from kfit.distribute.multi_worker import MultiWorker
from kfit.distribute.parameter_server import ParameterServer
from kfit.distribute.strategy import Strategy
from kfit.internals.runtime import tensorflow_has_run


def join_cluster(start_timeout: float | None = None) -> None:
    """Joins the cluster that this process was started in, before TensorFlow's first operation.

    TensorFlow connects a task to its peers only before the first operation of the process, and
    renames its devices when it does: a model or a data set made earlier would be lost. `import
    kfit` therefore calls this in a task of a cluster, so that models can be built anywhere.
    Elsewhere, and in tasks that run no `fit` (ps, evaluator, the workers of a cluster with ps), it
    does nothing.

    Args:
        start_timeout: As for `MultiWorker`.

    Raises:
        ClusterError: As `MultiWorker` and `ParameterServer` do.
    """
    cluster = current_cluster()
    if cluster is None or tensorflow_has_run():
        return
    strategy: Strategy
    if cluster.has_ps and cluster.task.type == "chief":
        strategy = ParameterServer(cluster, start_timeout=start_timeout)
    elif not cluster.has_ps and cluster.num_workers > 1 and not cluster.is_evaluator:
        strategy = MultiWorker(cluster, start_timeout=start_timeout)
    else:
        return
    strategy.tf_strategy  # noqa: B018  connects
