"""Sums of the replicas' values in the order of the replicas, the same bits in every run.

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
    """The sum of tensors of equal shapes, the same bits in every run."""
    if len(values) <= 2:
        return tf.add_n(values)
    # Not a chain of additions: Grappler, TensorFlow's graph optimizer, would make it one `add_n`.
    return tf.reduce_sum(tf.stack(values), 0)


def on_one_device() -> tf.distribute.CrossDeviceOps:
    """Cross-device operations that copy to one device, sum there in order, and copy back."""
    return tf.distribute.ReductionToOneDevice(accumulation_fn=added_in_order)
