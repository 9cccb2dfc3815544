"""Finds out from the graph whether the rows of a tensor are several copies of the batch in turn.

A step that draws `k` samples for each example may compute all of them at once: it puts `k` copies
of the batch one after another, such as by `tf.tile(x, [k, 1])`, and gives the result of the layers
the shape `(k, n, ...)` again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.exactness.origins import inputs_of

Tensor = Any


def copies_in_turn(tensor: Tensor, axis_of: Callable[[Tensor], int | None]) -> int:
    """Returns how many copies of the batch the rows of a tensor are; 1 if the graph shows none.

    Args:
        tensor: A tensor of the replica's step, with the examples along its first axis.
        axis_of: A function that returns the axis of the examples of a tensor, or None.
    """
    waiting, seen = [tensor], {id(tensor)}
    while waiting:
        each = waiting.pop()
        copies = _copies_made(each.op, axis_of)
        if copies > 1:
            return copies
        for before in inputs_of(each):
            if id(before) not in seen and axis_of(before) is not None:
                seen.add(id(before))
                waiting.append(before)
    return 1


def are_copies(tensor: Tensor, axis_of: Callable[[Tensor], int | None]) -> bool:
    """Returns whether the rows of a tensor are copies of the batch, and not parts of its examples.

    What was done last counts: the rows of copies may be divided into parts, such as steps of time.

    Args:
        tensor: A tensor of the replica's step, with the examples along its first axis.
        axis_of: A function that returns the axis of the examples of a tensor, or None.
    """
    waiting, seen = [tensor], {id(tensor)}
    while waiting:
        each = waiting.pop()
        if _copies_made(each.op, axis_of) > 1:
            return True
        if _divides(each.op, axis_of):
            continue
        for before in inputs_of(each):
            if id(before) not in seen and axis_of(before) is not None:
                seen.add(id(before))
                waiting.append(before)
    return False


def _divides(op: tf.Operation, axis_of: Callable[[Tensor], int | None]) -> bool:
    """Returns whether a reshape or a repetition makes several rows of each row."""
    if op.type != "Reshape" or op.inputs[0].shape.rank is None or op.outputs[0].shape.rank is None:
        return False
    sizes = op.inputs[0].shape.as_list(), op.outputs[0].shape.as_list()
    of_row, of_part = (math.prod(size or 1 for size in each) for each in sizes)
    return axis_of(op.inputs[0]) == 0 and of_part < of_row


def _copies_made(op: tf.Operation, axis_of: Callable[[Tensor], int | None]) -> int:
    """Returns how many copies of the batch an operation puts one after another."""
    if op.type == "Tile":
        times, axis = tf.get_static_value(op.inputs[1]), axis_of(op.inputs[0])
        return 1 if times is None or axis is None else int(times[axis])
    if op.type == "ConcatV2":
        *parts, at = op.inputs
        rank = op.outputs[0].shape.rank
        along = tf.get_static_value(at)
        if rank is None or along is None:
            return 1
        return len(parts) if all(axis_of(part) == int(along) % rank for part in parts) else 1
    if op.type == "Reshape" and axis_of(op.outputs[0]) == 0:
        axis, shape = axis_of(op.inputs[0]), op.inputs[0].shape
        before: list[Any] = shape.as_list()[:axis] if axis and shape.rank is not None else []
        return 1 if None in before else math.prod(before)
    return 1
