"""Strategies, clusters and tasks. Only this package and `kfit.internals` call `tf.distribute`.

Names are imported at their first use, so `kfit.distribute.Cluster` does not import TensorFlow.
"""

from typing import TYPE_CHECKING

from kfit.lazy import lazy_names

if TYPE_CHECKING:
    from kfit.cluster.cluster import Cluster as Cluster
    from kfit.cluster.cluster import ClusterError as ClusterError
    from kfit.cluster.cluster import Task as Task
    from kfit.cluster.resolvers import current_cluster as current_cluster
    from kfit.cluster.tpu_address import TPUNotFoundError as TPUNotFoundError
    from kfit.distribute.factory import as_strategy as as_strategy
    from kfit.distribute.mirrored import Mirrored as Mirrored
    from kfit.distribute.multi_worker import MultiWorker as MultiWorker
    from kfit.distribute.one_device import OneDevice as OneDevice
    from kfit.distribute.parameter_server import ParameterServer as ParameterServer
    from kfit.distribute.strategy import Strategy as Strategy
    from kfit.distribute.tpu import TPU as TPU
    from kfit.distribute.tpu import TPULostError as TPULostError
else:
    __getattr__, __dir__, __all__ = lazy_names(
        globals(),
        {
            "kfit.cluster.cluster": ["Cluster", "ClusterError", "Task"],
            "kfit.cluster.resolvers": ["current_cluster"],
            "kfit.cluster.tpu_address": ["TPUNotFoundError"],
            "kfit.distribute.factory": ["as_strategy"],
            "kfit.distribute.mirrored": ["Mirrored"],
            "kfit.distribute.multi_worker": ["MultiWorker"],
            "kfit.distribute.one_device": ["OneDevice"],
            "kfit.distribute.parameter_server": ["ParameterServer"],
            "kfit.distribute.strategy": ["Strategy"],
            "kfit.distribute.tpu": ["TPU", "TPULostError"],
        },
    )
