"""Finds out from the graph whether rows that are no examples were added to a batch.

A loss may put constants, or the entries of a memory, beside the values of the examples. Then a mean
over the rows is not a mean over the examples, since each replica adds as many rows as one device
does. The sum over the rows is that over the examples only if the added rows are zeros.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import tensorflow as tf

from kfit.graphs.code_of_steps import is_of_step
from kfit.graphs.origins import Origins, inputs_of
from kfit.graphs.rows_axis import rows_axis

Tensor = Any

_PADDING = {"Pad", "PadV2", "MirrorPad"}
_LIMITED = {"Conv2D", "Einsum", "MatMul", "BatchMatMulV2", "BatchMatMulV3", "ResourceGather"}
"""Products of layers; before these, only rows count that code outside of layers has added."""
_ZERO_OF_ZERO = {
    *("Abs", "AddN", "AddV2", "BroadcastTo", "Cast", "ConcatV2", "EnsureShape", "Erf", "Expm1"),
    *("Identity", "L2Loss", "LeakyRelu", "Log1p", "Max", "Mean", "Min", "Neg", "Pad", "Relu"),
    *("Reshape", "Sign", "Sin", "Sqrt", "Square", "SquaredDifference", "Squeeze", "StopGradient"),
    *("Sub", "Sum", "Tanh", "Transpose", "ExpandDims", "MatMul", "BatchMatMulV2", "StridedSlice"),
}
"""Operations that make zeros of rows of zeros."""


class Added(IntEnum):
    """What the rows hold that were added to those of the examples."""

    NOTHING = 0
    ZEROS = 1
    OTHERS = 2


def added_rows(tensor: Tensor, origins: Origins) -> Added:
    """Returns what rows were added to those of the examples.

    Args:
        tensor: A tensor of the replica's step, with a row for each example.
        origins: The record of which tensors kfit has marked, such as the examples.
    """
    try:
        return _Search(origins).of(tensor, is_near=True)
    except RecursionError:  # too deep to read
        return Added.NOTHING


class _Search:
    """A search for added rows, which follows the graph backwards as long as it finds rows.

    Args:
        origins: The record of which tensors kfit has marked.
    """

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._known: dict[int, Added] = {}

    def of(self, tensor: Tensor, *, is_near: bool) -> Added:
        """Returns what rows were added to those of the examples in a tensor.

        Args:
            tensor: The tensor.
            is_near: Whether no product of a layer was passed on the way to the tensor.
        """
        if id(tensor) not in self._known:
            self._known[id(tensor)] = self._search(tensor, is_near)
        return self._known[id(tensor)]

    def _search(self, tensor: Tensor, is_near: bool) -> Added:
        is_marked = self._origins.known_kind(tensor) is not None
        if is_marked or not self._origins.is_of_step(tensor):
            return Added.NOTHING
        op = tensor.op
        is_near = is_near and op.type not in _LIMITED
        of_inputs = [self._of_input(each, is_near) for each in inputs_of(tensor)]
        before = max(of_inputs, default=Added.NOTHING)
        if before and op.type == "Mul":
            before = min(each for each in of_inputs if each)
        elif before and op.type not in _ZERO_OF_ZERO and not _is_positive_power(op):
            before = Added.OTHERS
        here = _by_operation(op, self._origins)
        return max(before, here) if here and (is_near or is_of_step(op)) else before

    def _of_input(self, tensor: Tensor, is_near: bool) -> Added:
        if tensor.dtype in (tf.resource, tf.variant) or rows_axis(tensor) is None:
            return Added.NOTHING
        return self.of(tensor, is_near=is_near)


def _by_operation(op: tf.Operation, origins: Origins) -> Added:
    """Returns what rows one operation adds to those of the examples."""
    if op.type == "ConcatV2":
        return _by_concatenation(op, origins)
    axis = rows_axis(op.inputs[0]) if op.type in _PADDING else None
    if axis is None:
        return Added.NOTHING
    paddings = _paddings(op.inputs[1])
    if paddings is not None and not paddings[axis].any():
        return Added.NOTHING
    is_zero = op.type == "Pad" or (op.type == "PadV2" and _are_zeros(op.inputs[2]))
    return Added.ZEROS if is_zero else Added.OTHERS


def _paddings(tensor: Tensor) -> Any:
    """Returns the numbers of elements before and after each axis; None if they are not static."""
    found = tf.get_static_value(tensor)
    if found is None and tensor.op.type == "Reshape":  # as of `tf.image.pad_to_bounding_box`
        found = tf.get_static_value(tensor.op.inputs[0])
    return None if found is None else found.reshape(-1, 2)


def _by_concatenation(op: tf.Operation, origins: Origins) -> Added:
    *parts, at = op.inputs
    axis, rank = tf.get_static_value(at), op.outputs[0].shape.rank
    if axis is None or rank is None or not parts[0].dtype.is_floating:
        return Added.NOTHING
    is_along = [rows_axis(each) == int(axis) % rank for each in parts]
    if not any(is_along):
        return Added.NOTHING
    foreign = [
        each
        for each, has_examples in zip(parts, is_along, strict=True)
        if not has_examples or not origins.is_own(each)
    ]
    if not foreign or len(foreign) == len(parts):
        return Added.NOTHING
    return Added.ZEROS if all(map(_are_zeros, foreign)) else Added.OTHERS


def _is_positive_power(op: tf.Operation) -> bool:
    exponent = tf.get_static_value(op.inputs[1]) if op.type == "Pow" else None
    return exponent is not None and bool((exponent > 0).all())


def _are_zeros(tensor: Tensor) -> bool:
    value = tf.get_static_value(tensor)
    return value is not None and not value.any()
