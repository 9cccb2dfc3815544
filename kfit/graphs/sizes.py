"""Finds out from the graph which sizes are the number of a replica's examples.

An example is the first element of `tf.shape(x)`, where `x` is a batch. Sizes of other axes are
equal on all replicas, which have rows of one batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.graphs.placed_axes import parts_of_slice

Tensor = Any
AxisOf = Callable[[Tensor], int | None]

SIZES = {"Shape", "ShapeN", "Size"}
_ARITHMETIC = {"AddV2": np.add, "FloorMod": np.mod}
_AS_THEY_ARE = {"Cast", "Identity", "StopGradient", "Reshape", "Squeeze", "ExpandDims"}


def are_numbers(sizes: Tensor, axis_of: AxisOf) -> list[bool | None] | None:
    """Returns for each element of a vector of sizes whether it is computed from the number.

    Args:
        sizes: The vector, such as the shape that is passed to `tf.reshape`.
        axis_of: A function that returns the axis of the examples of a tensor, or None.

    Returns:
        True or False for each element, and None for one of which the graph does not show it. None
        if the graph shows nothing of the whole vector.
    """
    op = sizes.op
    if op.type in ("Shape", "ShapeN"):
        of = op.inputs[sizes.value_index]
        axis = axis_of(of)
        if of.shape.rank is None:
            return None
        return [each == axis for each in range(of.shape.rank)]
    if op.type == "Const":
        return [False] * (sizes.shape[0] or 0) if sizes.shape.rank == 1 else None
    if op.type in ("Cast", "Identity", "StopGradient"):
        return are_numbers(op.inputs[0], axis_of)
    if op.type == "Reshape" and sizes.shape.rank == 1:
        size = op.inputs[0]
        return [is_number(size, axis_of)] if size.shape.rank == 0 else are_numbers(size, axis_of)
    if op.type == "Fill" and sizes.shape.rank == 1 and sizes.shape[0] is not None:
        return [is_number(op.inputs[1], axis_of)] * sizes.shape[0]
    if op.type == "Pack":
        return [is_number(each, axis_of) for each in op.inputs]
    if op.type == "ConcatV2":
        parts = [are_numbers(each, axis_of) for each in op.inputs[:-1]]
        return None if None in parts else [each for part in parts for each in part or ()]
    if op.type == "StridedSlice":
        return _are_numbers_of_slice(op, axis_of)
    return _are_numbers_gathered(op, axis_of) if op.type == "GatherV2" else None


def is_number(size: Tensor, axis_of: AxisOf) -> bool | None:
    """Returns whether a size is computed from the number of examples; None if it is not seen.

    Args:
        size: A scalar, such as `tf.shape(x)[0]`.
        axis_of: A function that returns the axis of the examples of a tensor, or None.
    """
    op = size.op
    if op.type == "Const":
        return False
    if op.type == "Size":
        of = op.inputs[0]
        return axis_of(of) is not None
    if op.type == "StridedSlice":
        of_slice = _are_numbers_of_slice(op, axis_of)
        return of_slice[0] if of_slice and len(of_slice) == 1 else None
    if op.type == "GatherV2":
        gathered = _are_numbers_gathered(op, axis_of)
        return gathered[0] if gathered and len(gathered) == 1 else None
    if op.type == "Unpack":
        found = are_numbers(op.inputs[0], axis_of)
        return None if found is None else found[size.value_index]
    if op.type in _AS_THEY_ARE:
        return is_number(op.inputs[0], axis_of)
    if op.type in ("Max", "Min") and axis_of(op.inputs[0]) is not None:
        return False  # a value of one of the examples, such as the largest length of a sequence
    if op.type in ("Prod", "Max", "Min", "Sum"):
        found = are_numbers(op.inputs[0], axis_of)
    elif op.type in ("Mul", "AddV2", "Add", "Sub", "Maximum", "Minimum", "FloorDiv"):
        found = [is_number(each, axis_of) for each in op.inputs]
    else:
        return None
    if found is None or True in found:
        return None if found is None else True
    return None if None in found else False


def _are_numbers_gathered(op: tf.Operation, axis_of: AxisOf) -> list[bool | None] | None:
    """Returns it for the sizes of some axes, which TensorFlow's gradient of a mean gathers."""
    places = _static_value(op.inputs[1])
    sizes = are_numbers(op.inputs[0], axis_of) if places is not None else None
    return None if sizes is None else [sizes[place] for place in places.reshape(-1)]


def _static_value(tensor: Tensor) -> Any:
    """Returns the value of a tensor, such as of `(axis + rank) % rank`; None if it is unknown."""
    value = tf.get_static_value(tensor)
    if value is not None or tensor.op.type not in _ARITHMETIC:
        return value
    values = [_static_value(each) for each in tensor.op.inputs]
    return None if any(each is None for each in values) else _ARITHMETIC[tensor.op.type](*values)


def _are_numbers_of_slice(op: tf.Operation, axis_of: AxisOf) -> list[bool | None] | None:
    """Returns for each element of a slice of a vector whether it is computed from the number."""
    if op.inputs[0].shape.rank != 1 or len(parts_of_slice(op, 1)) != 1:
        return None
    begin, end, step = (tf.get_static_value(each) for each in op.inputs[1:])
    sizes = are_numbers(op.inputs[0], axis_of) if begin is not None else None
    if sizes is None:
        return None
    if op.get_attr("ellipsis_mask") & 1:
        return sizes
    if op.get_attr("shrink_axis_mask") & 1:
        return sizes[begin[0] :][:1] if begin[0] >= 0 else [sizes[begin[0]]]
    if end is None or step is None:
        return None
    first = None if op.get_attr("begin_mask") & 1 else begin[0]
    last = None if op.get_attr("end_mask") & 1 else end[0]
    return sizes[first : last : step[0]]
