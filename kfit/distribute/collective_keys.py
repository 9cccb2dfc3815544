"""TensorFlow's collectives between the devices of one process: unique keys, and a fallback.

TensorFlow identifies a collective by a key. Every `MirroredStrategy` starts to count its keys at
the same number. So the collectives of a second strategy in the process are mistaken for those of
the first one, and TensorFlow aborts all of them for good, with the error "Shape mismatch in the
collective instance". This module gives each strategy its own range of keys. If an error has aborted
the collectives in spite of this, only a new process can use collectives again; until then, the
replicas' values are summed by copying them to one device.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from kfit.distribute.additions import on_one_device
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.strategies import (
    collective_key_base,
    collective_ops,
    cross_device_ops,
    set_collective_key_base,
    set_cross_device_ops,
)

_GROUPS = 1000
"""The number of keys reserved for each strategy, which uses one key for each set of its devices."""
_PROBE_SECONDS = 10.0
"""The timeout, in seconds, of the collective that tests whether collectives still work."""
_strategies = itertools.count(1)
_aborted: list[str] = []
"""The error that aborted the collectives of this process, in a list; empty while they work."""


def with_keys_of_its_own(
    strategy: tf.distribute.MirroredStrategy,
) -> tf.distribute.MirroredStrategy:
    """Gives a strategy its own range of keys for collectives, and returns the strategy.

    TensorFlow identifies a collective (such as a sum over devices) by a key. If two strategies in
    one process used the same keys, TensorFlow would confuse their collectives, and abort all of
    them. If the strategy has been given its own range already, nothing is changed. Graphs that have
    already been traced keep their old keys. If an earlier error has aborted the collectives of this
    process, a strategy that would use collectives is changed to sum without them, by copying the
    replicas' values to one device.
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
    """Context that lets a strategy do without collectives after an error has aborted them.

    A collective is an operation of several devices together, such as a sum. If a collective fails,
    TensorFlow aborts all collectives of the process, for good. `fit`, `evaluate` and `predict` run
    in this context. If an error of TensorFlow leaves the context, and collectives no longer work,
    the strategy is changed: its later calls sum by copying the replicas' values to one device.
    Other errors, such as those of a layer or of the data, do not change the strategy. Every error
    is raised again.

    Args:
        strategy: Any strategy. Only a `MirroredStrategy` is changed.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MirroredStrategy):
            _recover(strategy, error)
        raise


def reduction(strategy: tf.distribute.Strategy) -> Any:
    """Returns the `CrossDeviceOps` by which a strategy sums over its replicas; None if it has none.

    A graph always uses the object with which it was traced. But a strategy gets another object when
    an error has aborted TensorFlow's collectives. So if this function returns another object than
    before, the steps must be traced again.
    """
    return cross_device_ops(strategy)


def _recover(strategy: tf.distribute.MirroredStrategy, error: Exception) -> None:
    sums_by_copies = cross_device_ops(strategy) is not collective_ops(strategy)
    if sums_by_copies or _collectives_work(strategy):
        return
    if not _aborted:
        _aborted.append(str(error))
        warn_user(
            "TensorFlow's collectives were aborted by an error, and stay so in this process. From "
            "now on its replicas add up by copies between the devices, with the same numbers; on "
            "GPUs that may take longer, until the program is started again.",
            RuntimeWarning,
        )
    set_cross_device_ops(strategy, on_one_device())


def _collectives_work(strategy: tf.distribute.MirroredStrategy) -> bool:
    """Returns whether the replicas of a strategy can still sum a number by a collective.

    Called after an error in a step, to find out whether the error has aborted the collectives.
    """
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=_PROBE_SECONDS)

    def on_replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]), options)

    try:
        tf.function(lambda: strategy.run(on_replica), autograph=False)()
    except tf.errors.OpError:
        return False
    return True
