"""``fit`` for Keras 3 on any ``tf.distribute`` strategy.

``import kfit`` is light: it imports neither TensorFlow nor Keras. A name of this module is imported
when it is first used, so that the environment (threads, devices) can still be set after
``import kfit``.

One thing cannot wait: TensorFlow connects the tasks of a cluster only before the first operation of
the process. In a task of a cluster (``TF_CONFIG`` lists several workers and this is one)
``import kfit`` therefore joins it, so that models can be built anywhere after it.
``KFIT_JOIN=0`` leaves that to ``kfit.distribute.join_cluster()``.
"""

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

if TYPE_CHECKING:
    from kfit import callbacks as callbacks
    from kfit import checkpoint as checkpoint
    from kfit import datasets as datasets
    from kfit import distribute as distribute
    from kfit import saving as saving
    from kfit.evaluation import BestExporter as BestExporter
    from kfit.evaluation import EvalSpec as EvalSpec
    from kfit.evaluation import Exporter as Exporter
    from kfit.evaluation import TrainingIdleError as TrainingIdleError
    from kfit.evaluation import TrainSpec as TrainSpec
    from kfit.evaluation import train_and_evaluate as train_and_evaluate
    from kfit.model import Model as Model
    from kfit.model import Sequential as Sequential
    from kfit.model import fit as fit
    from kfit.remote.launch import launch as launch
    from kfit.remote.launch_error import LaunchError as LaunchError
    from kfit.trainer import Trainer as Trainer
    from kfit.version import __version__ as __version__

__getattr__, __dir__, __all__ = lazy_names(
    globals(),
    {
        "kfit.evaluation": [
            "BestExporter",
            "EvalSpec",
            "Exporter",
            "TrainSpec",
            "TrainingIdleError",
            "train_and_evaluate",
        ],
        "kfit.model": ["Model", "Sequential", "fit"],
        "kfit.remote.launch": ["launch"],
        "kfit.remote.launch_error": ["LaunchError"],
        "kfit.trainer": ["Trainer"],
        "kfit.version": ["__version__"],
    },
    submodules=["callbacks", "checkpoint", "datasets", "distribute", "saving"],
)


_DESCRIBE_A_CLUSTER = ("TF_CONFIG", "KFIT_WORKERS", "SLURM_STEP_NUM_TASKS", "SM_HOSTS")


def _join_cluster() -> None:
    """Joins the cluster where this process is a task of one; a wrong description waits."""
    described = any(os.environ.get(name) for name in _DESCRIBE_A_CLUSTER)
    if not described or os.environ.get("KFIT_JOIN") == "0":
        return
    # The `kfit` command looks after tasks and is none, nor are a task's own helper processes.
    if _is_command() or multiprocessing.parent_process() is not None:
        return
    from kfit.cluster.cluster import ClusterError
    from kfit.cluster.resolvers import current_cluster

    try:
        cluster = current_cluster()
    except ClusterError:
        return  # the Trainer says what is wrong with it
    if cluster is None or cluster.is_evaluator:
        return  # an evaluator stands outside of what the others join
    if cluster.num_workers > 1 or cluster.has_ps:
        from kfit.distribute.joining import join_cluster

        join_cluster()


def _is_command() -> bool:
    """Whether this process is the `kfit` command: its script, or `python -m kfit`."""
    if sys.argv and os.path.basename(sys.argv[0]) == "kfit":
        return True
    module = iter(sys.orig_argv)
    return "-m" in module and next(module, "").split(".")[0] == __name__


_join_cluster()
