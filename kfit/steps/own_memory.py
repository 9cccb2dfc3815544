"""Keeps TensorFlow from writing into the arrays of a program.

A batch that Python code makes may share its memory with a NumPy array of the program. TensorFlow
knows that it must not write into this memory, but forgets it for a slice of the batch: the first
operation on the slice may put its result there. Replicas get slices, so the program's array would
change, and with it the batches of the next epoch.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_COPIED = frozenset(
    {
        *(tf.bool, tf.int8, tf.int16, tf.int32, tf.int64),
        *(tf.uint8, tf.uint16, tf.uint32, tf.uint64),
        *(tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.complex64, tf.complex128),
    }
)


def in_own_memory(element: Any) -> Any:
    """Returns a batch that shares no memory with arrays of the program, within a graph.

    It is copied only if it does so. Tensors of rare dtypes, such as float8, stay as they are.

    Args:
        element: The batch, in any structure.
    """
    return tf.nest.map_structure(
        # `Snapshot` passes on memory of TensorFlow, and copies any other.
        lambda part: tf.raw_ops.Snapshot(input=part) if part.dtype in _COPIED else part,
        element,
        expand_composites=True,
    )
