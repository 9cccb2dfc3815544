"""Adding up what replicas have, in the order of the replicas.

TensorFlow's `add_n` of three tensors or more begins with whichever has a buffer that nobody else
reads any more, which depends on the threads: another run may differ in the last bit. Two tensors
have the same sum in either order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

Tensor = Any


def added_in_order(values: Sequence[Tensor]) -> Tensor:
    """The sum of tensors that are alike in shape, the same bits in every run."""
    if len(values) <= 2:
        return tf.add_n(values)
    # Not a chain of additions: TensorFlow's optimizer of graphs makes one `add_n` of it.
    return tf.reduce_sum(tf.stack(values), 0)


def on_one_device() -> tf.distribute.CrossDeviceOps:
    """What copies to one device, adds up there, and copies back."""
    return tf.distribute.ReductionToOneDevice(accumulation_fn=added_in_order)
