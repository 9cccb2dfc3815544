"""Turns what a user passes as `strategy` into an adapter.

An adapter is kfit's wrapper of a `tf.distribute.Strategy`. All adapters are subclasses of
`kfit.distribute.strategy.Strategy`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import tensorflow as tf

from kfit.cluster.cluster import Cluster
from kfit.cluster.resolvers import cluster_source, current_cluster, workers_listed
from kfit.cluster.tpu_address import find_tpu
from kfit.cluster.variables import VERIFY
from kfit.distribute.collective_keys import with_keys_of_its_own
from kfit.distribute.devices import CPUS, how_to_split
from kfit.distribute.mirrored import Mirrored
from kfit.distribute.multi_worker import MultiWorker
from kfit.distribute.one_device import OneDevice
from kfit.distribute.parameter_server import ParameterServer
from kfit.distribute.scopes import scope_of
from kfit.distribute.strategy import Strategy
from kfit.distribute.tpu import TPU
from kfit.internals.strategies import partitions_by_spmd
from kfit.lazy import closest_name


@lru_cache(maxsize=1)
def _mirrored() -> Mirrored:
    """Returns the strategy of all models that ask for it by name, or have it chosen for them.

    Models that share layers can be used in several threads only if they have one strategy.
    """
    return Mirrored()


_BY_NAME: dict[str, Callable[[], Strategy]] = {
    OneDevice.name: OneDevice,
    Mirrored.name: _mirrored,
    MultiWorker.name: MultiWorker,
    ParameterServer.name: ParameterServer,
    TPU.name: TPU,
}
_BY_DEVICE = {
    "cpu": OneDevice.name,
    "gpu": Mirrored.name,
    "gpus": Mirrored.name,
    "cuda": Mirrored.name,
}
"""The strategies that are probably meant by names that are none."""


def as_strategy(
    strategy: str | Strategy | tf.distribute.Strategy,
    model: Any = None,
    devices: int | Sequence[str | int] | None = None,
) -> Strategy:
    """Returns the adapter for a strategy: kfit's wrapper of a `tf.distribute.Strategy`.

    For `"auto"` the adapter is the first of these that applies:

    1. The adapter of the active strategy, if that strategy trains on several tasks (processes). The
       active strategy is the one in whose scope `model` was made or this function is called.
    2. `ParameterServer`, in a cluster with ps tasks (parameter servers).
    3. `MultiWorker`, in a cluster of several workers.
    4. The adapter of the active strategy, if there is one.
    5. `TPU`, if the environment names a TPU or this host has one.
    6. `Mirrored`, if this host has several GPUs, or `kfit run --cpus` has split its CPU.
    7. `OneDevice`.

    A task that is an evaluator does not train with the workers, but evaluates on its own devices.
    So in an evaluator the result for `"auto"` is `Mirrored` on several GPUs, and otherwise
    `OneDevice`. An evaluator gets the same result if `strategy` is a `MultiWorker` or a
    `ParameterServer`, or the name of one of these two.

    Args:
        strategy: `"auto"`, the name of an adapter, an adapter, or a `tf.distribute.Strategy`.
        model: The model to be trained, or a function that makes it. It matters only for `"auto"`.
        devices: The devices of a `Mirrored`, if `strategy` is "auto" or "mirrored".

    Raises:
        ValueError: If `strategy` is something else, or kfit has no adapter for its kind; or if
            `devices` are wrong, or given with a different strategy.
        ClusterError: If the description of the cluster, such as TF_CONFIG, is wrong.
    """
    if devices is not None:
        if strategy not in ("auto", Mirrored.name):
            check_strategy(strategy)  # a misspelled name is told as such
            raise ValueError(
                "`devices` is an argument of the strategy 'mirrored'. To choose the devices of "
                "another strategy, pass it as an object, such as "
                f"kfit.distribute.OneDevice('GPU:1'). Received: strategy={strategy!r}, "
                f"devices={devices!r}"
            )
        cluster = current_cluster()
        if strategy == "auto" and cluster is not None and cluster.joins:
            raise ValueError(
                "`devices` is an argument of the strategy 'mirrored', which would train on this "
                f"process alone, but {cluster_source()} describes a cluster. Leave `devices` out, "
                f"or pass strategy='mirrored'. Received: strategy='auto', devices={devices!r}"
            )
        return Mirrored(devices)
    if strategy == "auto" or _evaluates_alone(strategy):
        return _choose(model)[0]
    if isinstance(strategy, Strategy):
        return strategy
    if isinstance(strategy, str) and strategy in _BY_NAME:
        current_cluster()  # raises if TF_CONFIG is wrong, also for adapters that do not read it
        return _BY_NAME[strategy]()
    check_strategy(strategy)
    return _wrap(strategy)


def check_strategy(strategy: Any) -> None:
    """Checks that a value is one that `as_strategy` takes; no strategy is made.

    Raises:
        ValueError: If it is neither "auto", the name of an adapter, an adapter nor a
            `tf.distribute.Strategy`.
    """
    names = ["auto", *_BY_NAME]
    is_name = isinstance(strategy, str) and strategy in names
    if is_name or isinstance(strategy, Strategy | tf.distribute.Strategy):
        return
    given = str(strategy)
    alike = _BY_DEVICE.get(given.lower()) or _name_of_class(given) or closest_name(given, names)
    hint = f". Did you mean {alike!r}?" if alike else ""
    raise ValueError(
        f"`strategy` must be 'auto', one of {sorted(_BY_NAME)}, an adapter such as "
        "kfit.distribute.Mirrored(...), or a tf.distribute.Strategy. "
        f"Received: {strategy!r}{hint}"
    )


def _name_of_class(given: str) -> str | None:
    """Returns "mirrored" for "MirroredStrategy", and so on for the classes of TensorFlow."""
    given = given.lower()
    if not given.endswith("strategy"):
        return None
    return next((name for name in _BY_NAME if given.startswith(name.replace("_", ""))), None)


def explain_choice(strategy: object, adapter: Strategy, model: Any = None) -> str | None:
    """Returns a line for `tell_choice`, if the strategy may be another than the user expects.

    It says which adapter `as_strategy` has chosen, and why. If the user has named a strategy for
    several devices or workers and there is only one, it says so, and how to get more.

    Args:
        strategy: What the user passed as `strategy`.
        adapter: What `as_strategy` has returned.
        model: The `model` that was passed to `as_strategy`.

    Returns:
        The line; None if the user gets the strategy that was asked for.
    """
    if strategy == "auto":
        chosen, reason = _choose(model)
        return f"kfit: strategy 'auto' chose {chosen.name!r}: {reason}."
    if _evaluates_alone(strategy):
        chosen, reason = _choose(model)
        name = strategy.name if isinstance(strategy, Strategy) else strategy
        return f"kfit: strategy {name!r} is {chosen.name!r} in this task: {reason}."
    cluster = current_cluster()
    if strategy == Mirrored.name and cluster is not None and cluster.joins:
        return (
            "kfit: strategy 'mirrored' trains on the devices of this task alone, although "
            f"{cluster_source()} describes a cluster of {cluster.num_workers} workers. To train on "
            "all of them, leave `strategy` out, or pass 'auto'."
        )
    if strategy == Mirrored.name and adapter.num_replicas == 1:
        return (
            "kfit: strategy 'mirrored' trains on one device, since this host has no other. Its CPU "
            f"can be split, to try two replicas. {how_to_split(2)}"
        )
    if strategy == MultiWorker.name and adapter.num_workers == 1:
        return (
            "kfit: strategy 'multi_worker' trains on this process alone, since no cluster "
            "of several is described. To start two workers on this host: `kfit run --workers 2 "
            "train.py`."
        )
    return None


@lru_cache(maxsize=1)
def tell_choice(line: str) -> None:
    """Prints what `explain_choice` has returned, unless the same line was printed last.

    Under `kfit verify` nothing is printed: it compares two strategies of its own, whatever the
    script has chosen.

    A program may make many trainers, one for each model of a GAN or each cell of a notebook.
    """
    if VERIFY not in os.environ:
        print(line, flush=True)


def _evaluates_alone(strategy: object) -> bool:
    """Returns whether this task is an evaluator, and `strategy` is one for the workers' cluster.

    An evaluator does not belong to that cluster. So if this is True, `as_strategy` chooses an
    adapter for the evaluator's own devices.
    """
    if isinstance(strategy, MultiWorker | ParameterServer):
        cluster = strategy.cluster
    elif strategy in (MultiWorker.name, ParameterServer.name):
        cluster = current_cluster()
    else:
        return False
    return cluster is not None and cluster.is_evaluator


def _choose(model: Any) -> tuple[Strategy, str]:
    cluster = current_cluster()
    scope = scope_of(model)
    gpus = tf.config.list_physical_devices("GPU")
    if cluster is not None and cluster.is_evaluator:
        local = _mirrored() if len(gpus) > 1 else OneDevice()
        return local, "the evaluator stands outside of the cluster of the workers"
    if scope is not None and (cluster is None or _is_of_cluster(scope)):
        return _wrap(scope), f"the model was made in the scope of a {type(scope).__name__}"
    if cluster is not None and cluster.has_ps:
        return ParameterServer(cluster), f"{cluster_source()} describes a cluster with ps tasks"
    if cluster is not None and cluster.num_workers > 1:
        return MultiWorker(cluster), workers_listed(cluster)
    if scope is not None:
        return _wrap(scope), f"the model was made in the scope of a {type(scope).__name__}"
    tpu = find_tpu()
    if tpu is not None:
        return TPU(), f"{tpu.source} names the TPU {tpu.tpu!r}"
    if len(gpus) > 1:
        return _mirrored(), f"this host has {len(gpus)} GPUs and no cluster is described"
    if not gpus and CPUS in os.environ:
        return _mirrored(), f"`kfit run --cpus {os.environ[CPUS]}` has split the CPU"
    device = "one GPU" if gpus else "no GPU"
    return OneDevice(), f"this host has {device} and no cluster is described"


def _is_of_cluster(strategy: tf.distribute.Strategy) -> bool:
    """Returns whether a TensorFlow strategy trains on several tasks (processes)."""
    kinds = tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.ParameterServerStrategy
    return isinstance(strategy, kinds)


def _wrap(strategy: tf.distribute.Strategy) -> Strategy:
    """Returns the adapter for a TensorFlow strategy that the user made.

    Raises:
        ValueError: If kfit has no adapter for this kind of strategy.
    """
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        adapter: Strategy = MultiWorker(_cluster_of(strategy))
    elif isinstance(strategy, tf.distribute.ParameterServerStrategy):
        adapter = ParameterServer.of(strategy)
    elif isinstance(strategy, tf.distribute.MirroredStrategy):
        adapter = Mirrored()
        strategy = with_keys_of_its_own(strategy)
    elif isinstance(strategy, tf.distribute.TPUStrategy):
        adapter = TPU(spmd=partitions_by_spmd(strategy))
    elif isinstance(
        strategy, (tf.distribute.OneDeviceStrategy, type(tf.distribute.get_strategy()))
    ):
        adapter = OneDevice()
    else:
        raise ValueError(
            f"`strategy` must be one of {sorted(_BY_NAME)} or a tf.distribute.Strategy of one of "
            f"these kinds. Received: a {type(strategy).__name__}"
        )
    adapter.take_over(strategy)
    return adapter


def _cluster_of(strategy: tf.distribute.MultiWorkerMirroredStrategy) -> Cluster | None:
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.cluster_spec().as_dict():
        return None
    return Cluster.from_resolver(resolver)
