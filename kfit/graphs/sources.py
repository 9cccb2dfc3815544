"""Follows a tensor of a replica's graph back to what it is computed from."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from kfit.graphs.inputs_first import find_inputs_first
from kfit.graphs.kinds import COUNT, NONE, Kinds
from kfit.graphs.origins import Origins, inputs_of
from kfit.graphs.rows_axis import is_inner_size, rows_axis
from kfit.graphs.sizes import SIZES

Tensor = Any

CONTRACTIONS = {"MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
LAYERS = {*CONTRACTIONS, "BiasAdd", "Conv2D", "ResourceGather"}
"""Operations of layers, at which the search for selected rows or for pairs of examples stops."""
_ALIGNMENTS = {"CTCLoss", "CTCLossV2"}
"""Operations that align the scores of each example, their first input, with sparse labels."""


def made_from(
    value: Tensor, origins: Origins, *, stop: set[str], known: Container[int] = ()
) -> list[Tensor]:
    """Returns a tensor, and the tensors of the step's graph that it is computed from.

    The graph is followed backwards from the tensor. It is not followed beyond tensors that kfit has
    marked, such as the replica's examples and sums over all replicas. The result contains no marked
    tensors, and no labels from which a CTC loss is computed: a sparse tensor is made of them, by
    operations that would put rows to other places if they were scores.

    Args:
        value: The tensor.
        origins: The record of which tensors kfit has marked.
        stop: Types of operations, such as "MatMul", whose inputs are not followed.
        known: The ids of tensors that are left out, and are not followed.
    """
    found: dict[int, Tensor] = {}
    waiting = [value]
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in found or id(tensor) in known:
            continue
        if origins.known_kind(tensor) is not None or not origins.is_of_step(tensor):
            continue
        found[id(tensor)] = tensor
        if tensor.op.type not in stop:
            inputs = inputs_of(tensor)
            waiting += inputs[:1] if tensor.op.type in _ALIGNMENTS else inputs
    return list(found.values())


class UsesOfRows:
    """Finds out which tensors of a replica's step are computed from the examples' values.

    What was found is kept, so that a whole graph is followed once.
    """

    def __init__(self, origins: Origins) -> None:
        self._origins = origins
        self._known: dict[int, bool] = {}

    def are_used(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is computed from the examples' values, as `used_by` says."""

        def find(each: Tensor) -> bool:
            inputs = self._inputs(each)
            return inputs is None or any(self._known.get(id(of), False) for of in inputs)

        return bool(
            find_inputs_first(
                tensor, self._known, key=id, inputs=lambda each: self._inputs(each) or (), find=find
            )
        )

    def _inputs(self, tensor: Tensor) -> Sequence[Tensor] | None:
        """Returns what the values of a tensor are computed from; None if it holds examples."""
        known = self._origins.known_kind(tensor)
        if known is not None:
            return None if "rows" in known else ()
        if not self._origins.is_of_step(tensor):
            return ()
        if tensor.op.type in SIZES or is_inner_size(tensor):
            return ()
        inputs = inputs_of(tensor)
        # The end of a range decides how many numbers there are, and changes none of them.
        return inputs[::2] if tensor.op.type == "Range" else inputs


def used_by(tensor: Tensor, origins: Origins) -> Kinds:
    """Finds out whether a tensor is computed from the examples' values, or from their number only.

    Tensors that kfit has marked as estimates or as equal on all replicas count as neither.

    Args:
        tensor: A tensor of the replica's step.
        origins: The record of which tensors kfit has marked.

    Returns:
        {"rows"} if the tensor is computed from the values of examples, {"count"} if it is computed
        from the number of examples only, and the empty set if it is computed from neither.
    """
    waiting, seen, found = [(tensor, False)], set(), NONE
    while waiting:
        tensor, is_size = waiting.pop()
        if (id(tensor), is_size) in seen:
            continue
        seen.add((id(tensor), is_size))
        known = origins.known_kind(tensor)
        if known is not None and "rows" in known:
            if not is_size:
                return frozenset({"rows"})
            found = COUNT
        if known is not None or not origins.is_of_step(tensor):
            continue
        if tensor.op.type in SIZES and not is_size:
            of = tensor.op.inputs[tensor.value_index]
            # Such as the number of examples, but not that of the nodes of a constant graph.
            waiting += [] if rows_axis(of) is None else [(of, True)]
        elif is_size or not is_inner_size(tensor):
            waiting += [(each, is_size) for each in inputs_of(tensor)]
    return found
