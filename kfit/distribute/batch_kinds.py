"""What a tensor of one replica is of its examples: their mean, their sum, or something else.

A number that is computed from a batch can be put together from the replicas' numbers if it is a
mean over the examples (weigh each by its share) or a sum (add them up). The root of a mean, a ratio
of two sums or a maximum cannot: one replica's says nothing of the whole batch's. Losses, metrics
and logs of the user's own may be either, and which one can be read from the graph that is traced.
"""

from __future__ import annotations

from typing import Any, Literal

import tensorflow as tf

from kfit.distribute.replicas import Replica

Tensor = Any
Kind = Literal["rows", "mean", "sum", "count", "other", "unknown"]
"""
    rows     one value an example
    mean     a mean over the examples
    sum      a sum over the examples
    count    computed from the number of the examples alone
    other    anything else that is computed from them
    unknown  what no graph shows
"""
Kinds = frozenset[Kind]

_NONE: Kinds = frozenset()
_LINEAR = {
    *("Identity", "Cast", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"),
    *("AddV2", "Add", "AddN", "Sub", "Neg", "Pack", "ConcatV2", "Squeeze", "ExpandDims"),
    *("Reshape", "Transpose", "StridedSlice", "IdentityN", "PlaceholderWithDefault"),
}
"""Operations by which a mean stays a mean, and a sum a sum."""
_DIVISIONS = {"RealDiv", "DivNoNan", "Div"}
_PRODUCTS = {"Mul", "MulNoNan"}
_REDUCTIONS = {"Mean": "mean", "Sum": "sum"}
_OTHER_REDUCTIONS = {"Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"}
_CONTRACTIONS = {"MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
_ADD_UP = {
    *("L2Loss", "Bincount", "DenseBincount", "SegmentSum", "SegmentSumV2", "UnsortedSegmentSum"),
    *("ScatterNd", "TensorScatterAdd"),
}
_LAYERS = {*_CONTRACTIONS, "BiasAdd", "Conv2D", "ResourceGather"}
"""What is computed before these is no choice of examples."""
_SIZES = {"Shape", "ShapeN", "Size"}
_COUNTING = {"Prod", "Maximum", *_PRODUCTS}
_CALLS = {"PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"}


def kinds_of(value: Any, replica: Replica) -> Kinds:
    """What a value is of the examples of the replica that is being traced.

    Args:
        value: A tensor of the replica's step, or a number.
        replica: The replica.

    Returns:
        All that went into it by addition; nothing if it is equal on all replicas.
    """
    if tf.executing_eagerly() or not replica.hides_rows:
        return frozenset({"unknown"})
    return _Reading(replica).of(value)


class _Reading:
    """Reads one tensor's graph, each of its tensors once."""

    def __init__(self, replica: Replica) -> None:
        self._origins = replica.origins
        self._known: dict[int, Kinds] = {}

    def of(self, tensor: Tensor) -> Kinds:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = self._read(tensor)
        return self._known[id(tensor)]

    def _read(self, tensor: Tensor) -> Kinds:
        known = self._origins.known_kind(tensor)
        if known is not None:
            return known
        if not self._origins.is_of_step(tensor):
            return frozenset({"unknown"})
        if not self._origins.is_own(tensor, ()):
            return _NONE
        if _has_rows(tensor):
            return frozenset({"rows"})
        found = self._of_operation(tensor.op)
        return (found - {"rows"}) | {"other"} if "rows" in found else found

    def _of_operation(self, op: tf.Operation) -> Kinds:
        kind, inputs = op.type, list(op.inputs)
        if kind in _SIZES:
            return frozenset({"count"})
        if kind in _CALLS:
            return frozenset({"unknown"})
        if kind in _LINEAR:
            return _NONE.union(*(self.of(each) for each in inputs))
        if kind in _DIVISIONS:
            return _divided(self.of(inputs[0]), self.of(inputs[1]))
        if kind in _REDUCTIONS or kind in _OTHER_REDUCTIONS:
            return self._reduced(op)
        own = [each for each in map(self.of, inputs) if each]
        if not own:  # random numbers
            return _NONE
        if all(each == {"count"} for each in own):
            return frozenset({"count" if kind in _COUNTING else "other"})
        if kind in _PRODUCTS and len(own) == 1:
            return own[0]
        is_sum = kind in _ADD_UP | _CONTRACTIONS and all(each == {"rows"} for each in own)
        return frozenset({"sum" if is_sum else "other"})

    def _reduced(self, op: tf.Operation) -> Kinds:
        reduced = op.inputs[0]
        before = self.of(reduced)
        if before == {"count"}:
            return frozenset({"count" if op.type in _COUNTING else "other"})
        if "rows" not in before:
            return before if op.type in _REDUCTIONS else frozenset({"other"})
        if op.type in _OTHER_REDUCTIONS:
            return frozenset({"other"})
        if op.type == "Mean" and _is_chosen(reduced):
            return frozenset({"other"})  # a mean over as many examples as were chosen
        return frozenset({"mean" if op.type == "Mean" else "sum"})


def _divided(above: Kinds, below: Kinds) -> Kinds:
    if not below:
        return above
    return frozenset({"mean" if below == {"count"} and above == {"sum"} else "other"})


def _has_rows(tensor: Tensor) -> bool:
    """Whether the first axis may be that of the examples, whose number no shape tells."""
    rank = tensor.shape.rank
    return rank is None or bool(rank and tensor.shape[0] is None)


def _is_chosen(tensor: Tensor) -> bool:
    """Whether a tensor is made of such rows only as a mask has chosen (`tf.boolean_mask`)."""
    waiting, seen = [tensor], set()
    while waiting:
        op = waiting.pop().op
        if op.type == "Where":
            return True
        if id(op) not in seen and op.type not in _LAYERS:
            seen.add(id(op))
            waiting += op.inputs
    return False
