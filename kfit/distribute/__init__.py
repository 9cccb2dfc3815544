"""Strategies, clusters and tasks: the only part of kfit that names `tf.distribute`.

Names are imported when first used: `kfit.distribute.Cluster` needs no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfit.cluster.cluster import Cluster as Cluster
    from kfit.cluster.cluster import ClusterError as ClusterError
    from kfit.cluster.cluster import Task as Task
    from kfit.cluster.resolvers import current_cluster as current_cluster
    from kfit.cluster.tpu_address import TPUNotFoundError as TPUNotFoundError
    from kfit.distribute.factory import as_strategy as as_strategy
    from kfit.distribute.joining import join_cluster as join_cluster
    from kfit.distribute.mirrored import Mirrored as Mirrored
    from kfit.distribute.multi_worker import MultiWorker as MultiWorker
    from kfit.distribute.one_device import OneDevice as OneDevice
    from kfit.distribute.parameter_server import ParameterServer as ParameterServer
    from kfit.distribute.strategy import Strategy as Strategy
    from kfit.distribute.tpu import TPU as TPU
    from kfit.distribute.tpu import TPULostError as TPULostError

_MODULE_OF = {
    "Cluster": "kfit.cluster.cluster",
    "ClusterError": "kfit.cluster.cluster",
    "Mirrored": "kfit.distribute.mirrored",
    "MultiWorker": "kfit.distribute.multi_worker",
    "OneDevice": "kfit.distribute.one_device",
    "ParameterServer": "kfit.distribute.parameter_server",
    "Strategy": "kfit.distribute.strategy",
    "TPU": "kfit.distribute.tpu",
    "TPULostError": "kfit.distribute.tpu",
    "TPUNotFoundError": "kfit.cluster.tpu_address",
    "Task": "kfit.cluster.cluster",
    "as_strategy": "kfit.distribute.factory",
    "current_cluster": "kfit.cluster.resolvers",
    "join_cluster": "kfit.distribute.joining",
}

__all__ = [*sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    """Imports the public name `name` at its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the lazy names too, for completion."""
    return sorted({*globals(), *__all__})
