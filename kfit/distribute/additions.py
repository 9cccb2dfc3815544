"""Sums the values of the replicas in the order of the replicas: every run gets the same bits.

`tf.add_n` of three or more tensors starts with a tensor whose buffer it may overwrite. Which one
that is depends on thread timing, so the last bit of the sum may differ from run to run. The sum of
two tensors does not depend on their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def added_in_order(values: Sequence[Tensor]) -> Tensor:
    """Returns the sum of tensors of equal shapes, with the same bits in every run."""
    if len(values) <= 2:
        return tf.add_n(values)
    # Not a chain of additions: Grappler, TensorFlow's graph optimizer, would make it one `add_n`.
    return tf.reduce_sum(tf.stack(values), 0)


def on_one_device() -> tf.distribute.CrossDeviceOps:
    """Returns the cross-device operations that sum on one device, in the order of the replicas.

    They copy the values to that device, and the sum back.
    """
    return tf.distribute.ReductionToOneDevice(accumulation_fn=added_in_order)
