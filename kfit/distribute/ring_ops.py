"""The ring's collectives as TensorFlow operations that run in the same order on all workers.

TensorFlow may run operations that do not depend on each other in any order, and in a different one
on each worker. Only operations that use the same variable keep their order. So each collective here
reads a counter from a variable, and writes the next number to it. This keeps all collectives in
order, also those in loops, conditionals and functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.distribute.ring import Ring


class RingOps:
    """TensorFlow operations for the collectives of a ring.

    Args:
        ring: The ring.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._turn = tf.Variable(0, trainable=False, dtype=tf.int64)

    def sum(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Sums tensors of one dtype over the workers.

        In the backward pass, the gradients of the sums are summed over the workers, too.
        """

        @tf.custom_gradient
        def summed_once(*tensors: tf.Tensor) -> Any:
            sums = self._in_turn(self.ring.sum, tensors)
            for total, tensor in zip(sums, tensors, strict=True):
                total.set_shape(tensor.shape)
            return sums, lambda *upstream: self.sum(*upstream)

        return list(summed_once(*tensors))

    def gather(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Concatenates the rows of all workers, in the order of the workers.

        The number of rows may differ between workers.
        """
        wholes = self._in_turn(self.ring.gather, tensors)
        for whole, tensor in zip(wholes, tensors, strict=True):
            whole.set_shape([None, *tensor.shape[1:]])
        return wholes

    def _in_turn(
        self, exchange: Callable[..., list[np.ndarray]], tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Adds an operation to the graph that runs a collective after those traced before.

        Args:
            exchange: The collective: a function of arrays that returns arrays.
            tensors: Its arguments.
        """

        def exchanged(turn: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            return [turn + 1, *exchange(*arrays)]

        # Raw ops, since kfit patches the variable's methods to record what a step assigns.
        handle = self._turn.handle
        turn = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        dtypes = [tf.int64, *(tensor.dtype for tensor in tensors)]
        next_turn, *results = tf.numpy_function(exchanged, [turn, *tensors], dtypes)
        tf.raw_ops.AssignVariableOp(resource=handle, value=next_turn)
        return results
