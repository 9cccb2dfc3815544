"""Finds out from the graph by which slice of the batch the rows of a tensor were cut out.

What is computed of `x` and of `x[:1]` together is computed of different examples, although both
have an axis of examples.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf

from kfit.graphs.chosen_rows import chooses_by_place
from kfit.graphs.inputs_first import find_inputs_first
from kfit.graphs.origins import Origins, inputs_of
from kfit.graphs.placed_axes import BROADCASTING, parts_of_slice
from kfit.graphs.rows_axis import rows_axis
from kfit.internals.graphs import BRANCHES, CALLS, LOOPS

Tensor = Any
Cuts = frozenset[tuple[Any, ...]]
"""The slices by which rows were cut out; empty if they are those of all examples."""

_ALL: Cuts = frozenset()
_JUDGED = {"ConcatV2", "GatherV2", *BRANCHES, *CALLS, *LOOPS}
"""Operations that put rows together from others, which `combines` judges by themselves."""

_known: WeakKeyDictionary[Any, dict[tuple[int, str, int], Cuts]] = WeakKeyDictionary()
"""The cuts that were found, by the names of the tensors, for each graph."""


def cuts_of(tensor: Tensor, origins: Origins) -> Cuts:
    """Returns the slices by which the rows of a tensor were cut out of the batch.

    The graph must be one in which the number of examples is not static (`Replica.hides_rows`).

    Args:
        tensor: A tensor of the replica's step, or of a loop or a branch in it.
        origins: The record of which tensors kfit has marked.
    """
    known = _known.setdefault(tensor.graph, {})

    def find(each: Tensor) -> Cuts:
        of_inputs = (known.get(_name(of), _ALL) for of in _sources(each, origins))
        return _cut(each, origins) or _ALL.union(*of_inputs)

    found: Cuts = find_inputs_first(
        tensor, known, key=_name, inputs=lambda each: _sources(each, origins), find=find
    )
    return found


def _name(tensor: Tensor) -> tuple[int, str, int]:
    return id(tensor.graph), tensor.op.name, tensor.value_index


def _sources(tensor: Tensor, origins: Origins) -> list[Tensor]:
    """Returns the tensors with rows of which an operation computes each row of a tensor."""
    is_marked = origins.known_kind(tensor) is not None or not origins.is_of_step(tensor)
    if is_marked or tensor.op.type in _JUDGED or rows_axis(tensor) is None:
        return []
    if tensor.dtype.is_integer and tensor.op.type in BROADCASTING:
        return []  # such as the lengths of ragged rows, from where they begin and end
    return [each for each in inputs_of(tensor) if rows_axis(each) is not None]


def _cut(tensor: Tensor, origins: Origins) -> Cuts:
    """Returns the cut that the operation itself makes; the same slice of two tensors is the same.

    A slice is told by where it begins, or, if that is the start of the batch, by where it ends.
    """
    op = tensor.op
    if origins.known_kind(tensor) is not None or not origins.is_of_step(tensor):
        return _ALL
    if rows_axis(tensor) is None or not chooses_by_place(op, origins):
        return _ALL
    rank = op.inputs[0].shape.rank
    if op.type != "StridedSlice" or rank is None:
        return frozenset({(op.name, tensor.value_index)})
    rows = rows_axis(op.inputs[0])
    index = next(index for index, axis in parts_of_slice(op, rank) if axis == rows)
    assert index is not None
    begins = not op.get_attr("begin_mask") >> index & 1
    bounds = [op.inputs[1]] if begins else []
    bounds += [] if op.get_attr("end_mask") >> index & 1 or _is_dynamic(bounds) else [op.inputs[2]]
    return frozenset({(begins, *(_bound(each, index) for each in bounds))})


def _is_dynamic(bounds: list[Tensor]) -> bool:
    return any(tf.get_static_value(each) is None for each in bounds)


def _bound(bounds: Tensor, index: int) -> Any:
    """Returns a number, or the name of the tensor with the number."""
    value = tf.get_static_value(bounds)
    if value is not None:
        return int(value[index])
    return _name(bounds.op.inputs[index] if bounds.op.type == "Pack" else bounds)
