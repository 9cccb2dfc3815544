"""Finds out from the graph which axis of a tensor is that of a replica's examples.

It is the first one, until an operation such as a transposition puts it to another place. TensorFlow
itself writes an operation along the first axis, such as `tf.nn.softmax(x, axis=0)`, as one along
the last axis between two transpositions. Static shapes alone do not show the axis: that of time,
for example, may be of any size as well. So each tensor is followed back to the examples.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from kfit.graphs.inputs_first import find_inputs_first
from kfit.graphs.origins import captured, inputs_of
from kfit.graphs.placed_axes import KNOWN, placed
from kfit.graphs.row_blocks import copies_in_turn, elements_of_row
from kfit.graphs.sizes import are_numbers, is_number
from kfit.internals.graphs import BRANCHES, CALLS, LOOPS, graphs_called_by

Tensor = Any

_SHAPED = {"Fill": 0, "Empty": 0, "BroadcastTo": 1, "Tile": 1, "Reshape": 1}
"""Operations whose result has a given shape, and the index of the input with the shape."""

_known: WeakKeyDictionary[Any, dict[tuple[str, int], int | None]] = WeakKeyDictionary()
"""The axes that were found, by the names of the tensors, for each graph."""


def rows_axis(tensor: Tensor) -> int | None:
    """Returns the axis of a tensor that has an element for each example; None if no axis has one.

    The graph must be one in which the number of examples is not static (`Replica.hides_rows`). A
    tensor of unknown rank is taken for one with the examples in its first axis.

    Args:
        tensor: A tensor of the graph; or a list of tensors, as of a `tf.TensorArray`, in which the
            places are the first axis.
    """
    if not _may_have_rows(tensor):
        return None
    found: int | None = find_inputs_first(
        tensor,
        _known.setdefault(tensor.graph, {}),
        key=_name,
        inputs=lambda each: filter(_may_have_rows, inputs_of(each)),
        find=_axis,
    )
    return found


def gathers_rows(op: tf.Operation) -> bool:
    """Returns whether an operation, a GatherV2, takes elements along the axis of the examples."""
    of, at = op.inputs[0], tf.get_static_value(op.inputs[2])
    axis, rank = rows_axis(of), of.shape.rank
    if at is None or axis is None:
        return False
    return bool((at if rank is None else int(at) % rank) == axis)


def is_inner_size(tensor: Tensor) -> bool:
    """Returns whether a tensor holds sizes of other axes than that of the examples.

    An example is `tf.shape(x)[1]`, and `tf.shape(x)[1:]` for the sizes of several axes.
    """
    op = tensor.op
    if op.type in ("Shape", "ShapeN"):
        of = op.inputs[tensor.value_index]
        return of.shape.rank is not None and rows_axis(of) is None
    if op.type not in ("StridedSlice", "Unpack", "GatherV2") or op.inputs[0].op.type not in (
        "Shape",
        "ShapeN",
    ):
        return False
    if tensor.shape.rank == 0:
        return is_number(tensor, rows_axis) is False
    sizes = are_numbers(tensor, rows_axis)
    return sizes is not None and not any(each is not False for each in sizes)


def enter(op: tf.Operation) -> list[Any]:
    """Returns the graphs of a loop, of branches or of a function that an operation calls.

    The axes of all inputs of these graphs are then known.

    Args:
        op: The operation, of a type in `LOOPS`, `BRANCHES` or `CALLS`.
    """
    graphs = graphs_called_by(op)
    given = [rows_axis(each) for each in op.inputs[1 if op.type in BRANCHES else 0 :]]
    for graph in graphs:
        known = _known.setdefault(graph, {})
        for inner, axis in zip(graph.inputs, given, strict=False):
            known.setdefault(_name(inner), axis)
    return graphs


def _name(tensor: Tensor) -> tuple[str, int]:
    return tensor.op.name, tensor.value_index


def _is_list(tensor: Tensor) -> bool:
    return tensor.dtype == tf.variant and tensor.shape.rank == 0


def _may_have_rows(tensor: Tensor) -> bool:
    if tensor.dtype == tf.resource:
        return False
    return tensor.shape.rank is None or None in tensor.shape.as_list() or _is_list(tensor)


def _axis(tensor: Tensor) -> int | None:
    """Returns the axis of the examples of a tensor; those of its inputs were found before."""
    op = tensor.op
    if op.type in LOOPS | BRANCHES | CALLS:
        return _axis_of_called(tensor)
    if op.type.startswith("TensorList"):
        return _axis_of_list(op)
    if op.type in ("Identity", "IdentityN"):
        return rows_axis(op.inputs[tensor.value_index])
    outer = captured(tensor) if op.type == "Placeholder" else None
    if outer is not None:  # what a branch or a loop reads from outside
        return rows_axis(outer)
    if tensor.shape.rank is None:
        return 0
    open_axes = [axis for axis, size in enumerate(tensor.shape) if size is None]
    first = 0 if 0 in open_axes else None
    if _is_list(tensor) or op.type in ("Placeholder", "PlaceholderWithDefault"):
        return first
    if op.type in _SHAPED or op.type == "Range":
        return _axis_by_sizes(op, open_axes)
    found = {i: rows_axis(each) for i, each in enumerate(op.inputs) if _may_have_rows(each)}
    if any(op.inputs[index].shape.rank is None for index in found):
        return first
    for index, axis in found.items():
        at = None if axis is None else placed(op, index, axis)
        if at in open_axes:
            return at
    has_lost_it = op.type in KNOWN or not any(axis is not None for axis in found.values())
    return None if found and has_lost_it else first


def _axis_by_sizes(op: tf.Operation, open_axes: list[int]) -> int | None:
    """Returns the axis of the examples of a tensor that was made of a given shape."""
    first = 0 if 0 in open_axes else None
    if op.type == "Range":
        return None if is_number(op.inputs[1], rows_axis) is False else first
    sizes = are_numbers(op.inputs[_SHAPED[op.type]], rows_axis)
    data = op.inputs[1 - _SHAPED[op.type]] if len(op.inputs) == 2 else None
    axis = None if data is None else rows_axis(data)
    at = placed(op, 1 - _SHAPED[op.type], axis) if axis is not None else None
    if op.type != "Reshape" and at in open_axes:
        return at
    if sizes is not None and len(sizes) == op.outputs[0].shape.rank and op.type != "Tile":
        numbers = [each for each in open_axes if sizes[each]]
        if numbers:
            return numbers[0]
        if op.type != "Reshape" and all(sizes[each] is False for each in open_axes):
            return None
    if op.type == "Reshape":
        if axis is None and _may_have_rows(data):
            return None
        if axis == 0 and open_axes == [1]:  # such as of shape (copies, examples, ...)
            are_copied = op.outputs[0].shape[0] == copies_in_turn(data, rows_axis)
            return (
                1 if are_copied or elements_of_row(data) == elements_of_row(op.outputs[0]) else None
            )
        return first if not axis else next(iter(open_axes), None)
    before = [] if data is None or data.shape.rank is None else data.shape.as_list()
    shift = op.outputs[0].shape.rank - len(before)
    opened = [each for each in open_axes if each < shift or before[each - shift] is not None]
    return next(iter(opened), None)


def _axis_of_list(op: tf.Operation) -> int | None:
    if op.type == "TensorListFromTensor":
        return rows_axis(op.inputs[0])
    if op.type == "TensorListReserve":
        return 0 if is_number(op.inputs[1], rows_axis) else None
    if op.type in ("TensorListSetItem", "TensorListPushBack"):
        of_list = rows_axis(op.inputs[0])
        of_item = rows_axis(op.inputs[2 if op.type == "TensorListSetItem" else 1])
        return of_list if of_item is None else of_item + 1
    axis, result = rows_axis(op.inputs[0]), op.outputs[-1].shape
    if op.type == "TensorListStack":
        return axis if axis is None or result.rank is None or result[axis] is None else None
    if op.type in ("TensorListGetItem", "TensorListPopBack"):
        return axis - 1 if axis else None
    return axis


def _axis_of_called(tensor: Tensor) -> int | None:
    op = tensor.op
    graphs = enter(op)
    if not graphs and op.type in LOOPS:
        return rows_axis(op.inputs[tensor.value_index])
    if not graphs:
        return 0 if tensor.shape.rank is None or tensor.shape.as_list()[:1] == [None] else None
    results = [graph.outputs[tensor.value_index] for graph in graphs[:1]]
    if op.type in LOOPS:
        results = [op.inputs[tensor.value_index], *results]
    axes = [axis for axis in map(rows_axis, results) if axis is not None]
    return axes[0] if axes else None
