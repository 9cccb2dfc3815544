"""TensorFlow's collectives between the devices of one process: unique keys, and a fallback.

TensorFlow identifies a collective by a key. Every `MirroredStrategy` counts its keys from the same
number, so the collectives of a second strategy in the process are mistaken for those of the first,
and TensorFlow aborts all of them for good: "Shape mismatch in the collective instance". This module
gives each strategy its own range of keys. If an error has aborted the collectives all the same,
only a new process could restore them; until then, replicas sum by copies between devices.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.distribute.additions import on_one_device
from kfit.internals.strategies import (
    collective_key_base,
    collective_ops,
    cross_device_ops,
    set_collective_key_base,
    set_cross_device_ops,
)

_GROUPS = 1000
"""Number of keys reserved for each strategy, which uses one for each set of its devices."""
_PROBE_SECONDS = 10.0
"""Timeout of the collective that tests whether collectives still work."""
_strategies = itertools.count(1)
_aborted: list[str] = []
"""The error that aborted this process' collectives; empty while they work."""


def with_keys_of_its_own(
    strategy: tf.distribute.MirroredStrategy,
) -> tf.distribute.MirroredStrategy:
    """Gives a strategy its own range of keys, unless it has one already, and returns the strategy.

    Graphs that were traced before keep their old keys. If the collectives of this process were
    aborted, a strategy that gets keys now sums by copies.
    """
    if collective_key_base(strategy):
        return strategy
    has_summed_by_copies = cross_device_ops(strategy) is not collective_ops(strategy)
    set_collective_key_base(strategy, _GROUPS * next(_strategies))
    if not has_summed_by_copies:
        ops = on_one_device() if _aborted else collective_ops(strategy)
        set_cross_device_ops(strategy, ops)
    return strategy


@contextmanager
def recovering(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Context that switches a strategy to sums by copies if an error aborts the collectives.

    A failing collective aborts all collectives of the process, for good. Errors of a layer or of
    the data do not abort them, and change nothing here. The error is raised again in any case.

    Args:
        strategy: A strategy; any but a `MirroredStrategy` is left unchanged.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MirroredStrategy):
            _recover(strategy, error)
        raise


def reduction(strategy: tf.distribute.Strategy) -> Any:
    """Returns the object that sums over the replicas for a strategy.

    When another object takes its place, graphs must be traced again.
    """
    return cross_device_ops(strategy)


def _recover(strategy: tf.distribute.MirroredStrategy, error: Exception) -> None:
    sums_by_copies = cross_device_ops(strategy) is not collective_ops(strategy)
    if sums_by_copies or _collectives_work(strategy):
        return
    if not _aborted:
        _aborted.append(str(error))
        warnings.warn(
            "TensorFlow's collectives were aborted by an error, and stay so in this process. From "
            "now on its replicas add up by copies between the devices, with the same numbers; on "
            "GPUs that may take longer, until the program is started again.",
            RuntimeWarning,
            stacklevel=2,
        )
    set_cross_device_ops(strategy, on_one_device())


def _collectives_work(strategy: tf.distribute.MirroredStrategy) -> bool:
    """Returns whether the replicas can still all-reduce one number."""
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=_PROBE_SECONDS)

    def on_replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]), options)

    try:
        tf.function(lambda: strategy.run(on_replica), autograph=False)()
    except tf.errors.OpError:
        return False
    return True
