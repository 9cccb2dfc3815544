"""TensorFlow's collectives within a process: keys for each strategy, and doing without them.

TensorFlow tells the sums of tensors apart by keys that each `MirroredStrategy` counts from the same
number. When a second strategy of a process sums another model, its sums are taken for those of
the first one, and all are aborted for good: "Shape mismatch in the collective instance". So every
strategy gets keys of its own here. And where an error has aborted the collectives all the same,
which only a new process could undo, replicas add up by copies from then on.
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
"""Keys that are set aside for a strategy; it takes one for each set of its devices."""
_PROBE_SECONDS = 10.0
"""How long a collective of one number may take before it counts as failed."""
_strategies = itertools.count(1)
_aborted: list[str] = []
"""What aborted the collectives of this process, if anything did."""


def with_keys_of_its_own(
    strategy: tf.distribute.MirroredStrategy,
) -> tf.distribute.MirroredStrategy:
    """Gives a strategy keys that no other one has, once; graphs that it has traced keep theirs."""
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
    """After an error in the block, has replicas add up by copies where it aborted the collectives.

    Those of one process are aborted together and for good by a collective that fails. An error of
    a layer or of the data leaves them as they are.

    Args:
        strategy: A strategy; one that is no `MirroredStrategy` is left alone.
    """
    try:
        yield
    except tf.errors.OpError as error:
        if isinstance(strategy, tf.distribute.MirroredStrategy):
            _recover(strategy, error)
        raise


def reduction(strategy: tf.distribute.Strategy) -> Any:
    """What sums for a strategy: graphs that were traced with another one are of no use."""
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
    """Whether the replicas can still sum a number."""
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=_PROBE_SECONDS)

    def on_replica() -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones([]), options)

    try:
        tf.function(lambda: strategy.run(on_replica), autograph=False)()
    except tf.errors.OpError:
        return False
    return True
