"""Small collectives between tasks: each task passes its own values, and all get the same result.

A task is one process of a cluster. If one task calls a method of `HostCollectives`, all tasks must
call it at the same point of the program; otherwise they would wait for each other for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from kfit.distribute.contexts import replica_index
from kfit.heartbeat import Heartbeat, Phase

_PACK = 1 << 22
"""The number of bytes that `HostCollectives.content` sends in one collective."""


class _Replicas(Protocol):
    """A protocol for type checks: the members of a strategy that `HostCollectives` uses.

    `kfit.distribute.strategy.Strategy` implements the protocol, and documents its members.
    """

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
    """The means by which the tasks (processes) of one strategy exchange small values.

    If one task calls a method, all tasks must call it. If there is only one task, nothing is sent.

    Args:
        strategy: The adapter, which is kfit's wrapper of a `tf.distribute.Strategy`. The values are
            exchanged by sums over its replicas.
    """

    def __init__(self, strategy: _Replicas) -> None:
        self._strategy = strategy
        self._heartbeat = Heartbeat.of_environment()
        self._graphs: dict[Any, Any] = {}

    @property
    def is_alone(self) -> bool:
        """Whether this is the only task (process), so that nothing is sent."""
        return self._strategy.num_workers == 1

    def all_gather(self, own: Sequence[float] | np.ndarray) -> np.ndarray:
        """Gathers numbers from all tasks (processes); all tasks must call it.

        Args:
            own: The numbers of this task, equally many on every task.

        Returns:
            A float64 array of shape `(tasks, len(own))`, equal on all tasks. The chief's row is
            first.
        """
        if self.is_alone:
            return np.asarray([own], "float64")
        # Each task fills in the row of its first replica, and the sum has all rows.
        table = np.zeros((self._strategy.num_replicas, len(own)), "float64")
        table[self._strategy.first_local_replica] = own
        local = self._strategy.num_local_replicas
        with self._heartbeat.phase(Phase.PEERS):
            return np.asarray(self._called(self._summed, [tf.constant(table)]))[::local] / local

    def any_true(self, own: bool) -> bool:
        """Returns whether `own` is true on at least one task (process); all tasks must call it."""
        return bool(self.all_gather([float(own)]).any())

    def texts(self, own: str, longest: int = 200) -> list[str]:
        """Gathers a short text from each task (process), the chief's first; all tasks must call it.

        Args:
            own: The text of this task, without null characters.
            longest: The number of bytes to which texts are cut, the same on every task.
        """
        row = own.encode(errors="replace")[:longest].ljust(longest, b"\0")
        rows = self.all_gather(list(row)).astype("uint8")
        return [each.tobytes().rstrip(b"\0").decode(errors="replace") for each in rows]

    def _called(self, exchange: Callable[[list[tf.Tensor]], Any], values: list[tf.Tensor]) -> Any:
        """Calls a method of this class in a graph.

        Each method has a separate `tf.function` for each list of shapes and dtypes, since
        TensorFlow warns if a single `tf.function` is traced five times.

        Args:
            exchange: The method.
            values: The tensors that the method gets as its only argument.
        """
        key = exchange.__name__, *((tuple(value.shape), value.dtype) for value in values)
        if key not in self._graphs:
            # A partial function, so that TensorFlow counts the traces of each one separately.
            self._graphs[key] = tf.function(partial(exchange), autograph=False)
        return self._graphs[key](values)

    def _summed(self, tables: list[tf.Tensor]) -> tf.Tensor:
        def on_replica(table: tf.Tensor) -> tf.Tensor:
            return self._strategy.all_reduce_sum(tf.identity(table))

        total = self._strategy.run(on_replica, tuple(tables))
        return self._strategy.local_results(total)[0]

    def broadcast(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the chief's tensors on every task (process); all tasks must call it.

        Args:
            values: On the chief, the tensors to send. On every other task, tensors of the same
                shapes and dtypes, whose values are ignored.
        """
        if self.is_alone or not values:
            return list(values)
        with self._heartbeat.phase(Phase.PEERS):
            numbers = [tf.cast(v, tf.int32) if v.dtype == tf.bool else v for v in values]
            sums = self._called(self._sent, numbers)
        return [tf.cast(total, value.dtype) for total, value in zip(sums, values, strict=True)]

    def content(self, own: bytes | None) -> bytes:
        """Returns the chief's bytes on every task (process); all tasks must call it.

        Args:
            own: On the chief, the bytes to send. On every other task the argument is ignored.
        """
        if self.is_alone:
            return own or b""
        own = (own or b"") if self._strategy.is_chief else b""
        size = int(self.all_gather([len(own)])[0, 0])
        received = bytearray()
        for start in range(0, size, _PACK):
            part = own[start : start + _PACK]
            # Sent as integers, to which the zeros of the other replicas add nothing. Each pack has
            # the same size, so that one graph sends them all.
            words = np.zeros(_PACK // 4, "int32")
            words.view("uint8")[: len(part)] = np.frombuffer(part, "uint8")
            received += np.asarray(self.broadcast([tf.constant(words)])[0]).tobytes()
        return bytes(received[:size])

    def _sent(self, values: list[tf.Tensor]) -> list[tf.Tensor]:
        def on_replica(*values: tf.Tensor) -> list[tf.Tensor]:
            # All replicas but the first one of the chief add zeros.
            first = replica_index() == 0
            own = [tf.identity(v) if first else tf.zeros_like(v) for v in values]
            return list(self._strategy.all_reduce_sum(own))

        sums = self._strategy.run(on_replica, tuple(values))
        return [self._strategy.local_results(total)[0] for total in sums]
