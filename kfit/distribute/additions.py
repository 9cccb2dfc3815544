"""Sums the values of the replicas in a fixed order, so that every run gets exactly the same sum.

`tf.add_n` does not guarantee this for three or more tensors. It may write the sum to the buffer of
one of these tensors, and begin the addition with that tensor. Thread timing decides which tensor is
chosen. So the order of the additions, and with it the last bit of the sum, may differ from run to
run. This module stacks three or more tensors, and sums the stack.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def added_in_order(values: Sequence[Tensor]) -> Tensor:
    """Returns the sum of tensors of equal shapes, exactly the same in every run.

    The order of the additions is fixed. With `tf.add_n` the last bit may differ from run to run.
    """
    if len(values) <= 2:
        return tf.add_n(values)
    # Not a chain of additions: Grappler, TensorFlow's graph optimizer, would make it one `add_n`.
    return tf.reduce_sum(tf.stack(values), 0)


def on_one_device() -> tf.distribute.CrossDeviceOps:
    """Returns `CrossDeviceOps` that copy the replicas' values to one device and sum them there.

    The sum is copied back to all devices. The order of the additions is fixed, so every run gets
    exactly the same sum.
    """
    return tf.distribute.ReductionToOneDevice(accumulation_fn=added_in_order)
