"""Strategies, clusters and tasks: the only part of kfit that names `tf.distribute`.

Names are imported when first used: `kfit.distribute.Cluster` needs no TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kfit.distribute.cluster import Cluster as Cluster
    from kfit.distribute.cluster import ClusterError as ClusterError
    from kfit.distribute.cluster import Task as Task
    from kfit.distribute.factory import as_strategy as as_strategy
    from kfit.distribute.joining import join_cluster as join_cluster
    from kfit.distribute.mirrored import Mirrored as Mirrored
    from kfit.distribute.multi_worker import MultiWorker as MultiWorker
    from kfit.distribute.one_device import OneDevice as OneDevice
    from kfit.distribute.parameter_server import ParameterServer as ParameterServer
    from kfit.distribute.resolvers import current_cluster as current_cluster
    from kfit.distribute.strategy import Strategy as Strategy
    from kfit.distribute.tpu import TPU as TPU
    from kfit.distribute.tpu import TPULostError as TPULostError
    from kfit.distribute.tpu_address import TPUNotFoundError as TPUNotFoundError

_MODULE_OF = {
    "Cluster": "cluster",
    "ClusterError": "cluster",
    "Mirrored": "mirrored",
    "MultiWorker": "multi_worker",
    "OneDevice": "one_device",
    "ParameterServer": "parameter_server",
    "Strategy": "strategy",
    "TPU": "tpu",
    "TPULostError": "tpu",
    "TPUNotFoundError": "tpu_address",
    "Task": "cluster",
    "as_strategy": "factory",
    "current_cluster": "resolvers",
    "join_cluster": "joining",
}

__all__ = [*sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    """Imports the public name `name` at its first use (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Lists the lazy names too, for completion."""
    return sorted({*globals(), *__all__})
