"""Decisions that all tasks share: each says its own, and all go on with the same.

Every function here is a collective: all tasks must call it at the same step, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from kfit.distribute.contexts import replica_index
from kfit.heartbeat import Heartbeat, Phase

_PACK = 1 << 22
"""Bytes that are sent at once."""


class _Replicas(Protocol):
    """What collectives need of `kfit.distribute.strategy.Strategy`, which documents it."""

    @property
    def num_workers(self) -> int: ...
    @property
    def num_replicas(self) -> int: ...
    @property
    def num_local_replicas(self) -> int: ...
    @property
    def first_local_replica(self) -> int: ...
    @property
    def is_chief(self) -> bool: ...

    def run(self, fn: Any, args: Any) -> Any: ...
    def local_results(self, value: Any) -> Any: ...
    def all_reduce_sum(self, value: Any) -> Any: ...


class HostCollectives:
    """Small collectives between the tasks of one strategy.

    Args:
        strategy: The adapter.
    """

    def __init__(self, strategy: _Replicas) -> None:
        self._strategy = strategy
        self._heartbeat = Heartbeat.of_environment()
        # Partial functions, for TensorFlow to count the traces of each by itself.
        self._sum = tf.function(partial(self._summed), autograph=False)
        self._send = tf.function(partial(self._sent), autograph=False)

    @property
    def is_alone(self) -> bool:
        """Whether there is no other task to ask."""
        return self._strategy.num_workers == 1

    def all_gather(self, own: Sequence[float] | np.ndarray) -> np.ndarray:
        """What every task says.

        Args:
            own: This task's numbers, as many on every task.

        Returns:
            float64 array of shape `(tasks, len(own))`, the chief's row first; equal on all tasks.
        """
        if self.is_alone:
            return np.asarray([own], "float64")
        # Each task fills in its own row, in the slot of its first replica.
        table = np.zeros((self._strategy.num_replicas, len(own)), "float64")
        table[self._strategy.first_local_replica] = own
        local = self._strategy.num_local_replicas
        with self._heartbeat.phase(Phase.PEERS):
            return np.asarray(self._sum(tf.constant(table)))[::local] / local

    def any_true(self, own: bool) -> bool:
        """Whether any task says yes."""
        return bool(self.all_gather([float(own)]).any())

    def _summed(self, table: tf.Tensor) -> tf.Tensor:
        def on_replica(table: tf.Tensor) -> tf.Tensor:
            return self._strategy.all_reduce_sum(tf.identity(table))

        total = self._strategy.run(on_replica, (table,))
        return self._strategy.local_results(total)[0]

    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The chief's tensors, on every task.

        Args:
            values: Tensors of the same shapes and dtypes on every task.
        """
        if self.is_alone or not values:
            return list(values)
        with self._heartbeat.phase(Phase.PEERS):
            sums = self._send([tf.cast(v, tf.int32) if v.dtype == tf.bool else v for v in values])
        return [tf.cast(total, value.dtype) for total, value in zip(sums, values, strict=True)]

    def content(self, own: bytes | None) -> bytes:
        """The chief's bytes, on every task.

        Args:
            own: The bytes; only the chief's are looked at.
        """
        if self.is_alone:
            return own or b""
        own = (own or b"") if self._strategy.is_chief else b""
        size = int(self.all_gather([len(own)])[0, 0])
        received = bytearray()
        for start in range(0, size, _PACK):
            part = own[start : start + _PACK]
            # As whole numbers, which add up to what they were; each pack has the same size, so
            # that one graph sends them all.
            words = np.zeros(_PACK // 4, "int32")
            words.view("uint8")[: len(part)] = np.frombuffer(part, "uint8")
            received += np.asarray(self.broadcast([tf.constant(words)])[0]).tobytes()
        return bytes(received[:size])

    def _sent(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        def on_replica(*values: tf.Tensor) -> list[tf.Tensor]:
            # All but the first replica of all add zeros.
            first = replica_index() == 0
            own = [tf.identity(v) if first else tf.zeros_like(v) for v in values]
            return list(self._strategy.all_reduce_sum(own))

        sums = self._strategy.run(on_replica, tuple(values))
        return [self._strategy.local_results(total)[0] for total in sums]
