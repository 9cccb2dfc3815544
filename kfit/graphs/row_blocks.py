"""Finds out from the graph whether the rows of a tensor are several copies of the batch in turn.

A step that draws `k` samples for each example may compute all of them at once: it puts `k` copies
of the batch one after another, such as by `tf.tile(x, [k, 1])`, and gives the result of the layers
the shape `(k, n, ...)` again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from kfit.graphs.origins import inputs_of
from kfit.graphs.sizes import AxisOf

Tensor = Any


def copies_in_turn(tensor: Tensor, axis_of: AxisOf) -> int:
    """Returns how many copies of the batch the rows of a tensor are; 1 if the graph shows none.

    Args:
        tensor: A tensor of the replica's step, with the examples along its first axis.
        axis_of: A function that returns the axis of the examples of a tensor, or None.
    """
    made = (_copies_made(each.op, axis_of) for each in _rows_before(tensor, axis_of))
    return next((copies for copies in made if copies > 1), 1)


def are_copies(tensor: Tensor, axis_of: AxisOf) -> bool:
    """Returns whether the rows of a tensor are copies of the batch, and not parts of its examples.

    What was done last counts: the rows of copies may be divided into parts, such as steps of time.

    Args:
        tensor: A tensor of the replica's step, with the examples along its first axis.
        axis_of: A function that returns the axis of the examples of a tensor, or None.
    """
    before = _rows_before(tensor, axis_of, stop=_divides)
    return any(_copies_made(each.op, axis_of) > 1 for each in before)


def elements_of_row(tensor: Tensor) -> int | None:
    """Returns how many elements a tensor has for each place of its one axis of unknown size.

    The result is None if there is no such axis, or more than one.
    """
    sizes = [] if tensor.shape.rank is None else tensor.shape.as_list()
    return _product(sizes) if sizes.count(None) == 1 else None


def _product(sizes: list[int | None]) -> int:
    """Returns the product of those sizes that are static."""
    return math.prod(size or 1 for size in sizes)


def _rows_before(
    tensor: Tensor, axis_of: AxisOf, stop: Callable[[tf.Operation, AxisOf], bool] | None = None
) -> Iterator[Tensor]:
    """Yields a tensor, and the tensors with an axis of examples that it is computed from.

    Args:
        tensor: The tensor.
        axis_of: A function that returns the axis of the examples of a tensor, or None.
        stop: A function that returns whether the inputs of an operation are not followed.
    """
    waiting, seen = [tensor], {id(tensor)}
    while waiting:
        each = waiting.pop()
        yield each
        if stop is not None and stop(each.op, axis_of):
            continue
        for before in inputs_of(each):
            if id(before) not in seen and axis_of(before) is not None:
                seen.add(id(before))
                waiting.append(before)


def _divides(op: tf.Operation, axis_of: AxisOf) -> bool:
    """Returns whether a reshape makes several rows of each row."""
    if op.type != "Reshape":
        return False
    data, result = op.inputs[0], op.outputs[0]
    if data.shape.rank is None or result.shape.rank is None:
        return False
    is_smaller = _product(result.shape.as_list()) < _product(data.shape.as_list())
    return is_smaller and axis_of(data) == 0


def _copies_made(op: tf.Operation, axis_of: AxisOf) -> int:
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
