"""A ring's exchanges as TensorFlow operations, which all workers take in one order.

TensorFlow runs operations without data between them in whichever order it likes, and another worker
in another one; it keeps only those in order that use the same variable. So each exchange here takes
its number from a variable, where it leaves the next one's. That holds in loops, in conditionals and
in functions, and between what is in them and what comes before and after.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.distribute.ring import Ring


class RingOps:
    """The operations of a ring.

    Args:
        ring: The ring.
    """

    def __init__(self, ring: Ring) -> None:
        self.ring = ring
        self._turn = tf.Variable(0, trainable=False, dtype=tf.int64)

    def sum(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """Sums tensors of one dtype over the workers; gradients are summed over them, too."""

        @tf.custom_gradient
        def summed_once(*tensors: tf.Tensor) -> Any:
            sums = self._in_turn(self.ring.sum, tensors)
            for total, tensor in zip(sums, tensors, strict=True):
                total.set_shape(tensor.shape)
            return sums, lambda *upstream: self.sum(*upstream)

        return list(summed_once(*tensors))

    def gather(self, *tensors: tf.Tensor) -> list[tf.Tensor]:
        """The rows of all workers in their order; each may have as many of them as it likes."""
        wholes = self._in_turn(self.ring.gather, tensors)
        for whole, tensor in zip(wholes, tensors, strict=True):
            whole.set_shape([None, *tensor.shape[1:]])
        return wholes

    def _in_turn(
        self, exchange: Callable[..., list[np.ndarray]], tensors: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        """Calls `exchange` with the tensors when all exchanges that were traced before are done."""

        def exchanged(turn: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            return [turn + 1, *exchange(*arrays)]

        # The methods of a variable are for those of a model: what a step assigns is looked at.
        handle = self._turn.handle
        turn = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)
        dtypes = [tf.int64, *(tensor.dtype for tensor in tensors)]
        next_turn, *results = tf.numpy_function(exchanged, [turn, *tensors], dtypes)
        tf.raw_ops.AssignVariableOp(resource=handle, value=next_turn)
        return results
