"""Finds out whether a loop or a branch in the graph combines a replica's examples with each other.

A loop may go over the examples, as `tf.scan`, `keras.ops.scan` or a `tf.while_loop` that reads one
row after the other. It then must compute with each example by itself, as `tf.map_fn` does. A loop
over something else, such as over time, must not combine the examples inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.graphs.code_of_steps import is_of_gradients
from kfit.graphs.placed_axes import parts_of_slice, placed
from kfit.graphs.rows_axis import enter, gathers_rows, rows_axis
from kfit.internals.graphs import BRANCHES, LOOPS

Tensor = Any
Test = Callable[[Tensor], bool]


def combines_inside(
    op: tf.Operation, are_used: Test, combines: Callable[[Tensor, Test], bool]
) -> bool:
    """Returns whether a loop, a branch or a function combines examples with each other.

    Args:
        op: The operation, of a type in `LOOPS`, `BRANCHES` or `CALLS`.
        are_used: A function that returns whether an input is computed from examples' values.
        combines: A function that returns whether the operation that makes a tensor inside combines
            examples. Its second argument is `are_used` for tensors inside.
    """
    for graph in enter(op):
        if any(_row_read(each) is not None for each in graph.get_operations()):
            if op.type not in LOOPS or not _computes_each_by_itself(graph):
                return True
            continue
        inside = _Inside(op, graph, are_used)
        if any(
            combines(tensor, inside.are_used)
            for each in graph.get_operations()
            for tensor in each.outputs[:1]
        ):
            return True
    return False


class _Inside:
    """Tells which tensors inside of a loop, a branch or a function are computed from examples.

    Args:
        op: The loop, the branch, or the call of the function.
        graph: The graph of its body, of one of the branches, or of the function.
        are_used: A function that tells it of the inputs.
    """

    def __init__(self, op: tf.Operation, graph: Any, are_used: Test) -> None:
        self._graph = graph
        self._outer = list(op.inputs)[1 if op.type in BRANCHES else 0 :]
        self._goes_round = op.type in LOOPS
        self._are_used_outside = are_used

    def are_used(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is computed from examples' values."""
        inputs = {id(each): index for index, each in enumerate(self._graph.inputs)}
        waiting, seen = [tensor], set()
        while waiting:
            tensor = waiting.pop()
            if id(tensor) in seen or tensor.dtype == tf.resource:
                continue
            seen.add(id(tensor))
            index = inputs.get(id(tensor))
            if index is None:
                is_size = tensor.op.type in ("Shape", "ShapeN", "Size")
                waiting += () if is_size else tensor.op.inputs
                continue
            if self._are_used_outside(self._outer[index]):
                return True
            if self._goes_round and index < len(self._graph.outputs):
                waiting.append(self._graph.outputs[index])
        return False


def _row_read(op: tf.Operation) -> Tensor | None:
    """Returns the place of the one example that an operation reads; None if it reads none.

    The place is a tensor. It is the operation's own result if the operation reads several rows, or
    a place that the graph does not show.
    """
    if op.type in ("TensorListGetItem", "TensorListPopBack"):
        is_row = rows_axis(op.inputs[0]) == 0
        return op.inputs[1] if is_row else None
    if op.type == "GatherV2":
        return op.inputs[1] if gathers_rows(op) and op.inputs[1].shape.rank == 0 else None
    if op.type != "StridedSlice" or op.inputs[0].shape.rank is None:
        return None
    axis = rows_axis(op.inputs[0])
    if axis is None or placed(op, 0, axis) is not None:
        return None
    index = next(i for i, of in parts_of_slice(op, op.inputs[0].shape.rank) if of == axis)
    begin = op.inputs[1].op
    return begin.inputs[index] if begin.type == "Pack" and index is not None else op.outputs[0]


def _computes_each_by_itself(body: Any) -> bool:
    """Returns whether a loop over the examples computes with each of them by itself.

    It does if it reads and writes rows at the place that it counts up to, and carries nothing but
    this place, and the list of what it has written, from one example to the next. What TensorFlow
    adds to a loop whose gradients are taken does not count: it keeps values for the gradients.

    Args:
        body: The graph of the loop's body.
    """
    results = {id(each): each for each in body.inputs}  # what only the condition reads has none
    results |= {
        id(each): _as_it_is(result) for each, result in zip(body.inputs, body.outputs, strict=False)
    }
    carried = {id(each) for each in body.inputs if results[id(each)] is not each}
    places = {id(each) for each in body.inputs if _counts_up(each, results[id(each)])}
    for op in body.get_operations():
        if is_of_gradients(op):
            continue
        place = _row_read(op)
        if place is not None:
            if id(_as_it_is(place)) not in places:
                return False
        elif op.type == "TensorListSetItem":
            values = op.inputs[2]
            if id(_as_it_is(op.inputs[1])) not in places or id(values) in carried:
                return False
        elif op.type not in ("Shape", "ShapeN", "Size", "Identity") and any(
            (id(each) in carried and id(each) not in places)
            or (rows_axis(each) is not None and each.dtype != tf.resource)
            for each in op.inputs
        ):
            return False
    return True


def _counts_up(place: Tensor, result: Tensor) -> bool:
    if not place.dtype.is_integer or result.op.type != "AddV2":
        return False
    one, step = result.op.inputs
    return one is place and tf.get_static_value(step) is not None


def _as_it_is(tensor: Tensor) -> Tensor:
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor
