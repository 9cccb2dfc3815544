"""Recognizes batches that a step puts together, and takes apart again after the model.

Contrastive and semi-supervised learning do so: the model gets `z = model(tf.concat([a, b], 0))`
once, and the step takes `tf.split(z, 2)`, or `z[:n]` and `z[n:]` with `n = tf.shape(a)[0]`. Each
part then has all examples of its batch: none was chosen.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.graphs.origins import Origins
from kfit.graphs.placed_axes import parts_of_slice
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sources import made_from
from kfit.internals.graphs import CALLS

Tensor = Any


def splits_into_batches(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether a Split or SplitV makes as many parts as batches were put together.

    Args:
        op: The operation, which splits along the axis of the examples.
        origins: The record of which tensors kfit has marked.
    """
    tensor = op.inputs[1] if op.type == "Split" else op.inputs[0]
    return _batches_in(tensor, origins) == {op.get_attr("num_split")}


def takes_batches(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether a slice takes whole batches, of one or of several that were put together.

    Args:
        op: The operation, a StridedSlice along the axis of the examples, the first one.
        origins: The record of which tensors kfit has marked.
    """
    tensor = op.inputs[0]
    counts = _batches_in(tensor, origins) or {1}
    if tensor.shape.rank is None or rows_axis(tensor) != 0 or len(counts) != 1 or 0 in counts:
        return False
    index = parts_of_slice(op, tensor.shape.rank)[0][0]
    steps = tf.get_static_value(op.inputs[3])
    if index is None or steps is None or steps[index] != 1:
        return False
    if op.get_attr("shrink_axis_mask") >> index & 1:
        return False
    return all(
        op.get_attr(mask) >> index & 1 or _is_multiple(op.inputs[place], index, origins)
        for mask, place in (("begin_mask", 1), ("end_mask", 2))
    )


def _batches_in(tensor: Tensor, origins: Origins) -> set[int]:
    """Returns how many batches were put together, for each place at which this was done.

    It is 0 where rows were added that are none of examples, such as those of a queue of negatives.
    """
    joined = (
        each.op.inputs[:-1]
        for each in made_from(tensor, origins, stop=CALLS)
        if each.op.type == "ConcatV2" and tf.get_static_value(each.op.inputs[-1]) == 0
    )
    return {len(parts) if all(rows_axis(part) == 0 for part in parts) else 0 for parts in joined}


def _is_multiple(bounds: Tensor, index: int, origins: Origins) -> bool:
    """Returns whether a bound of a slice is a multiple of the number of examples of a batch."""
    if bounds.op.type == "Pack":
        return _batches_before(bounds.op.inputs[index], origins) is not None
    value = tf.get_static_value(bounds)
    return value is not None and value[index] == 0


def _batches_before(size: Tensor, origins: Origins) -> int | None:
    """Returns of how many batches a size is the number of examples; None if it is none of these.

    Args:
        size: A scalar, such as `2 * tf.shape(a)[0]`, or `tf.shape(z)[0] // 2`.
        origins: The record of which tensors kfit has marked.
    """
    op = size.op
    if op.type in ("Cast", "Identity", "Neg"):
        return _batches_before(op.inputs[0], origins)
    if op.type == "StridedSlice" and op.inputs[0].op.type == "Shape":
        of = op.inputs[0].op.inputs[0]
        is_first = tf.get_static_value(op.inputs[1])
        if size.shape.rank != 0 or is_first is None or is_first[0] != 0 or rows_axis(of) != 0:
            return None
        counts = _batches_in(of, origins) or {1}
        return next(iter(counts)) if len(counts) == 1 and 0 not in counts else None
    if op.type not in ("Mul", "FloorDiv"):
        return None
    factors = [tf.get_static_value(each) for each in op.inputs]
    if op.type == "FloorDiv":
        count = _batches_before(op.inputs[0], origins)
        if count is None or factors[1] is None or count % int(factors[1]):
            return None
        return count // int(factors[1])
    for factor, other in zip(factors, op.inputs[::-1], strict=True):
        if factor is not None:
            count = _batches_before(other, origins)
            return None if count is None else int(factor) * count
    return None
