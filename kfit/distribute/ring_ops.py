"""The collectives of the ring as TensorFlow operations, in the same order on all workers.

A ring is a set of workers that sum arrays through kfit's sockets (`Ring`). TensorFlow may run
operations that do not depend on each other in any order, and in a different order on each worker.
Then the workers would not be at the same sum. Only operations that use the same variable keep their
order. So each collective reads a number from a variable, and writes the next number to it. This
keeps collectives in loops, conditionals and functions in order, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.distribute.ring import Ring
from kfit.internals.graphs import OWN_PYTHON


class RingOps:
    """TensorFlow operations that sum and gather tensors over workers, through kfit's sockets.

    The operations run in the order in which they were traced, so in the same order on all workers.

    Args:
        ring: This worker's connections in the ring of workers.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._turn = tf.Variable(0, trainable=False, dtype=tf.int64)
        self._key = secrets.randbits(62)

    def sum(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Sums tensors over the workers; all workers must call it.

        A sum is differentiable: in the backward pass, its gradients are summed over the workers,
        too.

        Args:
            *tensors: Tensors of one dtype.

        Returns:
            The sum of each tensor, equal on all workers.
        """

        @tf.custom_gradient
        def summed_once(*tensors: tf.Tensor) -> Any:
            sums = self._in_turn(self.ring.sum, tensors)
            for total, tensor in zip(sums, tensors, strict=True):
                total.set_shape(tensor.shape)
            return sums, lambda *upstream: self.sum(*upstream)

        return list(summed_once(*tensors))

    def gather(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Concatenates the rows of all workers for each tensor, in the order of the workers.

        All workers must call it. The number of rows may differ between workers.
        """
        wholes = self._in_turn(self.ring.gather, tensors)
        for whole, tensor in zip(wholes, tensors, strict=True):
            whole.set_shape([None, *tensor.shape[1:]])
        return wholes

    def _in_turn(
        self, exchange: Callable[..., list[np.ndarray]], tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Adds an operation to the graph that exchanges tensors with the other workers.

        The operation runs after those that were added before. So the order of the exchanges is the
        same on all workers.

        Args:
            exchange: The method `sum` or `gather` of the ring: a function of arrays that returns
                arrays.
            tensors: The arguments of `exchange`.

        Returns:
            The results of `exchange`, as tensors.
        """

        def exchanged(key: np.ndarray, turn: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            if int(key) != self._key:
                raise PermissionError("This graph was not made by the program of this worker.")
            return [turn + 1, *exchange(*arrays)]

        # Raw ops, since kfit patches the variable's methods to record what a step assigns.
        handle = self._turn.handle
        turn = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        dtypes = [tf.int64, *(tensor.dtype for tensor in tensors)]
        # TensorFlow calls Python functions by names that can be guessed. Whoever reaches the port
        # of this worker's gRPC server could call this one, but does not know the key.
        key = tf.constant(self._key, tf.int64)
        given = [key, turn, *tensors]
        next_turn, *results = tf.numpy_function(exchanged, given, dtypes, name=OWN_PYTHON)
        tf.raw_ops.AssignVariableOp(resource=handle, value=next_turn)
        return results
