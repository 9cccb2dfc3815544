"""TensorFlow's strategy of several workers, with sums through kfit's sockets where these exist.

TensorFlow asks a strategy itself for a sum in one place: an iterator over data of which each worker
reads a part of its own counts, in each step, the replicas that still have data. A worker that waits
there for another one in TensorFlow's collectives does not learn that the other one has ended with
an error. kfit's sockets tell it at once.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.distribute.ring_ops import RingOps


class RingStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    """A `tf.distribute.MultiWorkerMirroredStrategy` whose sums may go through kfit's sockets.

    Attributes:
        ring_ops: The operations that sum through kfit's sockets, for workers that are connected by
            them and have one replica each; None to sum by TensorFlow's collectives.
    """

    ring_ops: RingOps | None = None

    def reduce(self, reduce_op: Any, value: Any, axis: int | None) -> Any:
        """Combines per-replica values over all replicas of all workers.

        Args:
            reduce_op: "SUM" or "MEAN", or a `tf.distribute.ReduceOp`.
            value: A per-replica value, or a structure of such values.
            axis: None, or the axis along which values are combined as well.
        """
        if self.ring_ops is None or axis is not None or reduce_op not in _SUMS:
            return super().reduce(reduce_op, value, axis)
        parts = [self.experimental_local_results(part)[0] for part in tf.nest.flatten(value)]
        sums = [self.ring_ops.sum(tf.convert_to_tensor(part))[0] for part in parts]
        return tf.nest.pack_sequence_as(value, sums)


_SUMS = ("SUM", "sum", tf.distribute.ReduceOp.SUM)
