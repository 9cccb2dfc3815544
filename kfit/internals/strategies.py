"""Functions that read and change private state of `tf.distribute` strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.internals.graphs import current_graph
from kfit.internals.private import uses

_CREATORS = "tf.compat.v1.Graph._variable_creator_stack"
_OF_DEFAULT = "_DefaultDistributionContext"
_MIRRORED = "tf.distribute.MirroredStrategy.extended"
_MULTI_WORKER = "tf.distribute.MultiWorkerMirroredStrategy.extended"
_SERVERS = "tf.distribute.ParameterServerStrategy"


def is_sharded(value: Any) -> bool:
    """Returns whether a value is a sharded variable, whose parts are on several parameter servers.

    TensorFlow's class has no public name.
    """
    return type(value).__name__ == "ShardedVariable"


@contextmanager
def scope_in_default_scope(strategy: tf.distribute.Strategy) -> Iterator[tf.distribute.Strategy]:
    """The scope of a strategy, also where the scope of the default strategy is active.

    `tf.distribute.get_strategy()` returns the default strategy outside of all scopes. Its scope
    does nothing, but TensorFlow refuses to make variables of any other strategy in it.
    """
    graph = current_graph()
    before = _variable_creators(graph)
    _set_variable_creators(
        graph, [each for each in before if _OF_DEFAULT not in getattr(each[1], "__qualname__", "")]
    )
    try:
        with strategy.scope(), tf.variable_creator_scope(_with_means_of_integers):
            yield strategy
    finally:
        _set_variable_creators(graph, before)


def _with_means_of_integers(make: Callable[..., Any], **settings: Any) -> Any:
    """Creates a variable; with means of integers, kfit alone combines the replicas' values.

    TensorFlow makes no variable of integers on several devices that is to be averaged. kfit does
    so at the end of a step, by the `aggregation` of the Keras variable.
    """
    is_mean = settings.get("aggregation") == tf.VariableAggregation.MEAN
    is_own = settings.get("synchronization") == tf.VariableSynchronization.ON_READ
    dtype = settings.get("dtype")
    if is_mean and not is_own and dtype is not None and not tf.as_dtype(dtype).is_floating:
        settings["aggregation"] = tf.VariableAggregation.NONE
    return make(**settings)


_NO_WAY_OUT = "a scope can be left by its own context manager only"


@uses(_CREATORS, because=_NO_WAY_OUT)
def _variable_creators(graph: Any) -> list[tuple[int, Any]]:
    creators: list[tuple[int, Any]] = graph._variable_creator_stack
    return creators


@uses(_CREATORS, because=_NO_WAY_OUT)
def _set_variable_creators(graph: Any, creators: list[tuple[int, Any]]) -> None:
    graph._variable_creator_stack = creators


@uses(f"{_MIRRORED}._collective_key_base", because="tests alone may choose the keys of collectives")
def collective_key_base(strategy: tf.distribute.MirroredStrategy) -> int:
    """Returns the number from which a strategy counts the keys of its collectives.

    It is 0 unless it was changed. Two strategies in one process must not use the same keys.
    """
    return int(strategy.extended._collective_key_base)


@uses(
    f"{_MIRRORED}._collective_key_base",
    f"{_MIRRORED}._collective_ops",
    f"{_MIRRORED}._make_collective_ops_with_fallbacks",
    because="tests alone may choose the keys of collectives",
)
def set_collective_key_base(strategy: tf.distribute.MirroredStrategy, base: int) -> None:
    """Makes a strategy count the keys of its collectives from the number `base`."""
    extended = strategy.extended
    extended._collective_key_base = base
    extended._collective_ops = extended._make_collective_ops_with_fallbacks()


_FIRST_KEY = "tf.distribute.MultiWorkerMirroredStrategy._collective_key_base"


@contextmanager
def counting_keys_from(base: int) -> Iterator[None]:
    """Context in which each `MultiWorkerMirroredStrategy` that is made counts its keys from `base`.

    Unlike a `MirroredStrategy` it takes the number when it is made, and cannot be given another.
    """
    before = _first_key()
    _set_first_key(base)
    try:
        yield
    finally:
        _set_first_key(before)


@uses(_FIRST_KEY, because="tests alone may choose the keys of collectives")
def _first_key() -> int:
    return int(tf.distribute.MultiWorkerMirroredStrategy._collective_key_base)


@uses(_FIRST_KEY, because="tests alone may choose the keys of collectives")
def _set_first_key(base: int) -> None:
    tf.distribute.MultiWorkerMirroredStrategy._collective_key_base = base


@uses(f"{_MIRRORED}._collective_ops", because="what sums by collectives can be asked for in no way")
def collective_ops(strategy: tf.distribute.MirroredStrategy) -> Any:
    """Returns the `CrossDeviceOps` by which a mirrored strategy can sum with collectives."""
    return strategy.extended._collective_ops


@uses(f"{_MIRRORED}._cross_device_ops", because="`cross_device_ops` is an argument only")
def cross_device_ops(strategy: tf.distribute.Strategy) -> Any:
    """Returns the `CrossDeviceOps` by which a strategy sums now; None if there is none."""
    return getattr(strategy.extended, "_cross_device_ops", None)


@uses(f"{_MIRRORED}._cross_device_ops", because="`cross_device_ops` is an argument only")
def set_cross_device_ops(strategy: tf.distribute.Strategy, ops: Any) -> None:
    """Sets the `CrossDeviceOps` by which a strategy sums from now on."""
    strategy.extended._cross_device_ops = ops


@contextmanager
def without_sending_initial_values(extended: Any) -> Iterator[None]:
    """Context in which workers make variables without receiving the chief's initial values.

    The chief is the first worker. In the context, initial values must be equal on all workers
    already.

    Args:
        extended: `strategy.extended` of a `MultiWorkerMirroredStrategy`.
    """
    workers = _number_of_workers(extended)
    _set_number_of_workers(extended, 1)
    try:
        yield
    finally:
        _set_number_of_workers(extended, workers)


_SENT = "TensorFlow sends first values wherever a strategy counts several workers"


@uses(f"{_MULTI_WORKER}._num_workers", because=_SENT)
def _number_of_workers(extended: Any) -> int:
    return int(extended._num_workers)


@uses(f"{_MULTI_WORKER}._num_workers", because=_SENT)
def _set_number_of_workers(extended: Any, workers: int) -> None:
    extended._num_workers = workers


@uses(f"{_SERVERS}._cluster_resolver", because="the public `cluster_resolver` of it is always None")
def resolver_of_servers(strategy: tf.distribute.ParameterServerStrategy) -> Any:
    """Returns the cluster resolver that a `ParameterServerStrategy` was made with."""
    return strategy._cluster_resolver


@uses(f"{_SERVERS}.extended._variable_partitioner", because="it is an argument only")
def partitioner_of(strategy: tf.distribute.ParameterServerStrategy) -> Any:
    """Returns the partitioner that divides a strategy's variables into shards on parameter servers.

    None if the strategy was made without one.
    """
    return strategy.extended._variable_partitioner


@uses("tf.distribute.TPUStrategy._use_spmd_for_xla_partitioning", because="it is an argument only")
def partitions_by_spmd(strategy: tf.distribute.TPUStrategy) -> bool:
    """Returns whether a TPUStrategy was made with `use_spmd_for_xla_partitioning`."""
    return bool(getattr(strategy, "_use_spmd_for_xla_partitioning", False))
