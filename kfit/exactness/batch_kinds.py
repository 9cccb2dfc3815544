"""Finds out from the graph whether a value is a mean or a sum over a replica's examples.

The value for the global batch can be computed from the replicas' values if the value is a mean over
the examples (each replica's mean is weighted by its share of the examples), a sum over the examples
(the replicas' sums are added up), or a sum of such terms. It cannot be computed if the value is the
root of a mean, a ratio of two sums or a maximum. A loss, metric or log of the user's own code may
be of any kind. The graph that is being traced shows the kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import tensorflow as tf

from kfit.exactness.added_rows import Added, added_rows
from kfit.exactness.code_of_steps import is_of_step
from kfit.exactness.origins import Origins
from kfit.exactness.placed_axes import parts_of_slice
from kfit.exactness.replica_context import Replica
from kfit.exactness.rows_axis import BRANCHES, LOOPS, enter, is_inner_size, rows_axis
from kfit.exactness.sizes import SIZES

Tensor = Any
Kind = Literal["rows", "mean", "sum", "count", "inverse", "other", "unknown"]
"""How a value depends on the examples of a replica:

    rows     one value for each example
    mean     a mean over the examples
    sum      a sum over the examples
    count    the number of examples, or a multiple of it
    inverse  a constant divided by the number of examples
    other    anything else that is computed from the examples
    unknown  the graph does not show it
"""
Kinds = frozenset[Kind]

_NONE: Kinds = frozenset()
_SUM: Kinds = frozenset({"sum"})
_COUNT: Kinds = frozenset({"count"})
_INVERSE: Kinds = frozenset({"inverse"})
_LINEAR = {
    *("Identity", "Cast", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"),
    *("AddV2", "Add", "AddN", "Sub", "Neg", "Pack", "ConcatV2", "Squeeze", "ExpandDims"),
    *("Reshape", "Transpose", "StridedSlice", "Unpack", "IdentityN", "PlaceholderWithDefault"),
}
"""Operations whose result is a mean if all inputs are means, and a sum if all inputs are sums."""
_AS_IT_IS = {"Identity", "EnsureShape", "CheckNumerics", "Reshape", "Squeeze"}
_DIVISIONS = {"RealDiv", "DivNoNan", "Div"}
_PRODUCTS = {"Mul", "MulNoNan"}
_REDUCTIONS = {"Mean": "mean", "Sum": "sum"}
_OTHER_REDUCTIONS = {"Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"}
CONTRACTIONS = {"MatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum"}
_ADD_UP = {
    *("L2Loss", "Bincount", "DenseBincount", "SegmentSum", "SegmentSumV2", "UnsortedSegmentSum"),
    *("ScatterNd", "HistogramFixedWidth"),
}
LAYERS = {*CONTRACTIONS, "BiasAdd", "Conv2D", "ResourceGather"}
"""Operations of layers, at which the search for selected rows or for pairs of examples stops."""
_HOMOGENEOUS = {*_LINEAR, "Abs", "LeakyRelu", "Relu", "Select", "SelectV2"}
"""Operations whose result is n times as large if their inputs are, for a positive n."""
_COPYING = {"BroadcastTo": 0, "Fill": 1, "GatherV2": 0, "Tile": 0}
"""Operations that repeat or pick values, and the index of the input that holds these."""
_TINY = 1e-6
_MOST_ROUNDS = 4
"""How often the body of a loop is read until the kinds of its results stay the same."""
_ONES = {"Fill", "OnesLike"}
_COUNTING = {"Prod", "Maximum", "Minimum"}
_CHOICES_BY_VALUE = {"Where", "DynamicPartition"}
_CHOICES_BY_PLACE = {"TopKV2", "Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2"}
_OF_EACH_RAGGED_ROW = {
    *("RaggedGather", "RaggedTensorToTensor", "RaggedTensorToVariant", "SparseToDense"),
    *("SegmentMax", "SegmentMean", "SegmentMin", "SegmentProd", "SegmentSum", "SegmentSumV2"),
    *("SparseSegmentMean", "SparseSegmentSum", "SparseTensorDenseMatMul", "UnsortedSegmentMax"),
    *("UnsortedSegmentMin", "UnsortedSegmentProd", "UnsortedSegmentSum"),
}
"""Operations that make rows of examples of the values of a ragged or sparse batch."""
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "XlaLaunch"}


def kinds_of(value: Any, replica: Replica) -> Kinds:
    """Finds out from the graph how a value is computed from the examples of a replica.

    Args:
        value: A tensor of the replica's step, or a number.
        replica: The replica that is being traced.

    Returns:
        The kinds ("mean", "sum", ...; see `Kind`) of all terms that are added up in the value.
        Empty if the value is equal on all replicas; {"unknown"} if there is no graph that can be
        read.
    """
    if tf.executing_eagerly() or not replica.hides_rows:
        return frozenset({"unknown"})
    return _Reading(replica).of(value)


_KINDS_OF_SUMS: dict[int | None, Kinds] = {0: _SUM, -1: frozenset({"mean"})}
"""The kind of a sum over rows, by the power of their number by which they are multiplied."""


def has_rows_of_examples(value: Any, replica: Replica) -> bool:
    """Returns whether a value has a row for each of a replica's examples.

    Other values are scalars, and what remains of a sum along the axis of the examples. If there is
    no graph that can be read, every value that is no scalar has rows.

    Args:
        value: A tensor of the replica's step, or a number.
        replica: The replica that is being traced.
    """
    if tf.TensorShape(getattr(value, "shape", ())).rank == 0:
        return False
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or not replica.hides_rows:
        return True
    if not replica.origins.is_of_step(value) or not value.dtype.is_floating:
        return True
    return rows_axis(value) is not None or "rows" in _Reading(replica).of(value)


def has_rows_elsewhere(value: Any, replica: Replica) -> bool:
    """Returns whether the examples are along another axis of a value than the first.

    Args:
        value: A tensor of the replica's step, or a number.
        replica: The replica that is being traced.
    """
    if not isinstance(value, tf.Tensor) or not has_rows_of_examples(value, replica):
        return False
    return bool(replica.hides_rows and not tf.executing_eagerly() and rows_axis(value))


def has_other_rows(value: Tensor, replica: Replica, *, by_value: bool) -> bool:
    """Returns whether rows are not those of all examples: rows were added, or some were selected.

    Args:
        value: The rows, a tensor of the replica's step.
        replica: The replica that is being traced.
        by_value: Whether rows count that were selected by their values, as by a mask.
    """
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or not replica.hides_rows:
        return False
    if added_rows(value, replica.origins):
        return True
    return _Reading(replica).are_chosen(value, by_value=by_value)


def power_of_number(value: Any, replica: Replica) -> int | None:
    """Finds out whether the rows of a value contain the number of examples as a factor.

    A user's loss may divide the value of each example by this number, so that Keras' sum of the
    values is a mean over the examples.

    Args:
        value: A tensor of the replica's step, with a row for each example.
        replica: The replica that is being traced.

    Returns:
        The exponent p if the rows have the factor n ** p, where n is the number of the replica's
        examples: 0 if they do not depend on n, and -1 if they were divided by n. None if they
        depend on n in another way. 0 if there is no graph that can be read.
    """
    if not isinstance(value, tf.Tensor) or tf.executing_eagerly() or not replica.hides_rows:
        return 0
    return _Reading(replica).power(value)


class Addend(NamedTuple):
    """A term of a sum, such as of a loss: the product of a tensor and a factor.

    Attributes:
        tensor: The tensor that is multiplied by `factor`.
        factor: A number or scalar tensor that is equal on all replicas.
        kinds: How the tensor is computed from the replica's examples: "mean", "sum", ... (see
            `Kind`). Empty if the tensor is equal on all replicas.
    """

    tensor: Tensor
    factor: Any
    kinds: Kinds

    def weights(self, number: Any) -> Tensor:
        """Returns a tensor of the shape of `tensor`, filled with `factor * number`.

        It is passed as `output_gradients` to the `gradient` of a tape, with `tensor` as the target.
        The tape then returns the gradients of `tensor * factor * number`.

        Args:
            number: The weight of this term on the replica, a number or scalar tensor.
        """
        return tf.ones_like(self.tensor) * tf.cast(self.factor * number, self.tensor.dtype)

    def times(self, number: Any) -> Tensor:
        """Returns `tensor * factor * number`."""
        return self.tensor * tf.cast(self.factor * number, self.tensor.dtype)


def addends_of(value: Tensor, replica: Replica) -> list[Addend]:
    """Splits a value into the terms that are added up in it, as far as the graph shows them.

    For example, a user's loss may be the sum of a mean and of a sum over the examples. Each term
    must then be weighted in its own way.

    Args:
        value: A floating-point tensor without a row for each example, such as a scalar.
        replica: The replica that is being traced.

    Returns:
        The terms; only the value itself if it cannot be split.
    """
    if tf.executing_eagerly() or not replica.hides_rows:
        return [Addend(value, 1.0, frozenset({"unknown"}))]
    reading = _Reading(replica)
    found: list[Addend] = []
    waiting: list[tuple[Tensor, Any]] = [(value, 1.0)]
    while waiting:
        tensor, factor = waiting.pop()
        parts = _parts(tensor, reading) if reading.may_be_taken_apart(tensor) else None
        if parts is None:
            found.append(Addend(tensor, factor, reading.of(tensor)))
        else:
            waiting += [(part, factor * times) for part, times in reversed(parts)]
    return found


def _parts(tensor: Tensor, reading: _Reading) -> list[tuple[Tensor, Any]] | None:
    """Splits a tensor into the terms that its last operation adds up.

    Args:
        tensor: The tensor.
        reading: A reader of the graph. It finds which inputs of the operation are equal on all
            replicas, as a factor must be.

    Returns:
        The terms, each with its factor: `[(a, 1.0), (b, -1.0)]` for `a - b`, and `[(b, c)]` for
        `b * c` with a factor c. None for any other operation, and if the terms differ from
        the tensor in shape or dtype.
    """
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    if kind == "Sum" and inputs[0].op.type == "Pack":
        kind, inputs = "AddN", list(inputs[0].op.inputs)
    if kind in _AS_IT_IS:
        inputs = inputs[:1]
    if any(each.dtype != tensor.dtype for each in inputs):
        return None
    if kind == "Mul":
        for one, other in (inputs, inputs[::-1]):
            if _are_alike(other, tensor) and not reading.of(one):
                return [(other, one)]
        return None
    if not all(_are_alike(each, tensor) for each in inputs[: 1 if kind in _DIVISIONS else None]):
        return None
    if kind in _AS_IT_IS or kind in ("AddV2", "Add", "AddN"):
        return [(each, 1.0) for each in inputs]
    if kind == "Neg":
        return [(inputs[0], -1.0)]
    if kind == "Sub":
        return [(inputs[0], 1.0), (inputs[1], -1.0)]
    if kind in _DIVISIONS and not reading.of(inputs[1]):
        return [(inputs[0], 1.0 / inputs[1])]
    return None


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same static shape, as two scalars have."""
    return one.shape.is_fully_defined() and one.shape == other.shape


class _Reading:
    """A reader of a replica's graph, which finds the kinds of tensors: {"mean"}, {"sum"} and so on.

    The kinds (see `Kind`) say how a tensor depends on the replica's examples. They are found from
    the operation that computes the tensor and the kinds of its inputs, and are remembered.

    Args:
        replica: The replica that is being traced.
        inside: The graph of a loop or a branch, if its tensors are to be read.
        given: The kinds of the inputs of this graph.
    """

    def __init__(self, replica: Replica, inside: Any = None, given: Sequence[Kinds] = ()) -> None:
        self._replica = replica
        self._origins = replica.origins
        self._inside = inside
        inputs = inside.inputs if inside is not None else ()
        self._known: dict[int, Kinds] = {
            id(tensor): kinds for tensor, kinds in zip(inputs, given, strict=False)
        }
        self._powers: dict[int, int | None] = {}
        self._results: dict[str, list[Kinds]] = {}

    def of(self, tensor: Tensor) -> Kinds:
        """Returns the kinds of a tensor: {"mean"} for a mean over the examples, and so on."""
        try:
            if id(tensor) not in self._known:
                self._known[id(tensor)] = self._read(tensor)
            return self._known[id(tensor)]
        except RecursionError:  # the graph is too deep to read
            return frozenset({"other"})

    def may_be_taken_apart(self, tensor: Tensor) -> bool:
        """Returns whether each term of a sum may be looked at by itself, instead of the sum.

        The sum must be in the step's own graph (not in a function within it) and of a static shape,
        and its kind (such as a mean over the examples) must not be known already.
        """
        return (
            self._origins.known_kind(tensor) is None
            and self._origins.is_of_step(tensor)
            and tensor.shape.is_fully_defined()
        )

    def _read(self, tensor: Tensor) -> Kinds:
        known = self._origins.known_kind(tensor)
        if known is not None:
            return known
        if tensor.graph is not self._inside:
            if not self._origins.is_of_step(tensor):
                return frozenset({"unknown"})
            if not self._origins.is_own(tensor, ()):
                return _NONE
        if rows_axis(tensor) is not None and not _is_added_up(tensor):
            return frozenset({"rows"})
        if is_inner_size(tensor):
            return _NONE  # all replicas have rows of one batch
        if tensor.op.type == "IdentityN":  # of a function with a gradient of its own
            return self.of(tensor.op.inputs[tensor.value_index])
        if tensor.op.type in LOOPS | BRANCHES:
            return self._of_called(tensor.op)[tensor.value_index]
        found = self._of_operation(tensor.op)
        return (found - {"rows"}) | {"other"} if "rows" in found else found

    def _of_called(self, op: tf.Operation) -> list[Kinds]:
        """Returns the kinds of the results of a loop or a branch, as read from its graphs."""
        if op.name not in self._results:
            self._results[op.name] = self._read_called(op)
        return self._results[op.name]

    def _read_called(self, op: tf.Operation) -> list[Kinds]:
        others: list[Kinds] = [frozenset({"other"})] * len(op.outputs)
        graphs, is_loop = enter(op), op.type in LOOPS
        if not graphs or any(_chooses(each) for graph in graphs for each in graph.get_operations()):
            return others
        given = [self.of(each) for each in op.inputs]
        if not is_loop:
            case = tf.get_static_value(op.inputs[0])
            if given[0]:
                return others
            if case is not None and len(graphs) == 2:
                graphs = graphs[:1] if case else graphs[1:]
            of_each = [self._results_inside(graph, given[1:]) for graph in graphs]
            return [_NONE.union(*kinds) for kinds in zip(*of_each, strict=True)]
        body, condition = graphs
        for _ in range(_MOST_ROUNDS):
            results = self._results_inside(body, given)
            if any(self._results_inside(condition, given)):
                return others  # the examples decide how often the loop goes round
            after = [before | kinds for before, kinds in zip(given, results, strict=False)]
            if after == given:
                return results
            given = after
        return others

    def _results_inside(self, graph: Any, given: Sequence[Kinds]) -> list[Kinds]:
        reading = _Reading(self._replica, graph, given)
        return [reading.of(each) for each in graph.outputs]

    def _of_operation(self, op: tf.Operation) -> Kinds:
        kind, inputs = op.type, list(op.inputs)
        if kind in SIZES:
            if rows_axis(inputs[0]) is None:
                return _NONE
            return frozenset({"other"}) if self.are_chosen(inputs[0]) else _COUNT
        if kind in CALLS:
            return frozenset({"unknown"})
        if kind.startswith("TensorList"):
            return _NONE.union(*(self.of(each) for each in inputs))
        if kind == "Cast" and inputs[0].dtype.is_floating and not op.outputs[0].dtype.is_floating:
            return frozenset({"other"}) if self.of(inputs[0]) else _NONE
        if kind in _LINEAR:
            found = _NONE.union(*(self.of(each) for each in inputs))
            return frozenset({"other"}) if "count" in found and self._shifts(op) else found
        if kind in _COPYING:
            data = inputs.pop(_COPYING[kind])
            if not any(self.of(each) for each in inputs):
                return self.of(data)
            inputs = list(op.inputs)
        if kind in _DIVISIONS:
            return _divided(self.of(inputs[0]), self.of(inputs[1]))
        if kind in _REDUCTIONS or kind in _OTHER_REDUCTIONS:
            return self._reduced(op)
        own = [each for each in map(self.of, inputs) if each]
        if not own:  # constants, sizes of other axes, or random numbers, which differ
            return frozenset({"other"}) if _is_random(op) else _NONE
        if kind in _PRODUCTS and len(own) == 1:
            return own[0]
        if kind in _PRODUCTS and set(own) == {_SUM, _INVERSE}:
            return frozenset({"mean"})
        if kind in _PRODUCTS and set(own) == {frozenset({"mean"}), _COUNT}:
            return _SUM
        if kind in _COUNTING and own == [{"count"}]:
            return own[0]
        if kind in ("Reciprocal", "Inv") and own == [{"count"}]:
            return _INVERSE
        if kind == "UnsortedSegmentSum" and self.of(inputs[0]) <= {"mean", "sum"}:
            return self.of(inputs[0])  # a sparse gradient (`tf.IndexedSlices`) that was made dense
        if kind in ("Bincount", "DenseBincount"):
            own = own[:1]  # the counted numbers; the other input is the number of bins
        if kind in _ADD_UP | CONTRACTIONS:
            if all(each == {"rows"} for each in own):
                with_rows = [each for each in inputs if rows_axis(each) is not None]
                if any(added_rows(each, self._origins) == Added.OTHERS for each in with_rows):
                    return frozenset({"other"})
                powers = [self.power(each) for each in with_rows]
                power = None if None in powers else sum(filter(None, powers))
                return _KINDS_OF_SUMS.get(power, frozenset({"other"}))
            return own[0] if len(own) == 1 and own[0] <= {"mean", "sum"} else frozenset({"other"})
        return frozenset({"other"})

    def _reduced(self, op: tf.Operation) -> Kinds:
        reduced = op.inputs[0]
        before = self.of(reduced)
        if not before:
            return _NONE
        if before == {"count"}:
            return frozenset({"count" if op.type in _COUNTING else "other"})
        if "rows" not in before:
            # The size of a histogram may depend on what the examples of the replica hold.
            is_mean = op.type == "Mean" and not self._has_bins(reduced)
            is_fine = is_mean or op.type == "Sum" or before <= {"mean"}
            return before if op.type in _REDUCTIONS and is_fine else frozenset({"other"})
        is_whole = rows_axis(reduced) is not None or op.outputs[0].shape.rank == 0
        if op.type in _OTHER_REDUCTIONS or not is_whole:
            return frozenset({"other"})
        if self.are_chosen(reduced, by_value=op.type == "Mean" or reduced.op.type in _ONES):
            return frozenset({"other"})  # the divisor of a mean is the number of selected examples
        if reduced.op.type in _ONES and op.type == "Sum":
            return _COUNT
        power = self.power(reduced)
        if power is not None and op.type == "Mean":
            power -= 1
        return _KINDS_OF_SUMS.get(power, frozenset({"other"}))

    def _has_bins(self, tensor: Tensor) -> bool:
        """Returns whether the size of a tensor may be the number of bins of a histogram."""
        if tensor.shape.is_fully_defined():
            return False
        found = made_from(tensor, self._origins, stop=CALLS | LAYERS)
        return any(each.op.type in _ADD_UP and not each.shape.is_fully_defined() for each in found)

    def _shifts(self, op: tf.Operation) -> bool:
        """Returns whether an operation adds a constant to the number of examples, as in `n - 1`.

        A tiny one, which keeps a divisor from being 0, does not count.
        """
        if op.type not in ("AddV2", "Add", "AddN", "Sub"):
            return False
        constants = [tf.get_static_value(each) for each in op.inputs if not self.of(each)]
        return any(each is None or abs(each).max() > _TINY for each in constants)

    def power(self, tensor: Tensor) -> int | None:
        """Finds out whether a tensor's rows contain the number of examples as a factor.

        Returns:
            The exponent p if the rows have the factor n ** p, where n is the number of the
            replica's examples: 0 if they do not depend on n, and -1 if they were divided by n, so
            that the sum of the rows is a mean. None if they depend on n in another way.
        """
        try:
            if id(tensor) not in self._powers:
                self._powers[id(tensor)] = self._power(tensor)
            return self._powers[id(tensor)]
        except RecursionError:  # too deep to read, and so far from any number of examples
            return 0

    def _power(self, tensor: Tensor) -> int | None:
        is_marked = self._origins.known_kind(tensor) is not None
        if is_marked or not self._origins.is_of_step(tensor) or tensor.op.type in LAYERS | CALLS:
            return 0
        kind, inputs = tensor.op.type, list(tensor.op.inputs)
        if kind in _AS_IT_IS | _REDUCTIONS.keys() | _OTHER_REDUCTIONS:
            inputs = inputs[:1]
        powers = [self._power_of_factor(each) for each in inputs if each.dtype.is_floating]
        if not any(powers):
            return None if None in powers else 0
        if None in powers:
            return None
        if kind in _PRODUCTS:
            return sum(filter(None, powers))
        if kind in _DIVISIONS:
            return (powers[0] or 0) - (powers[1] or 0)
        if kind in ("Square", "L2Loss"):
            return 2 * (powers[0] or 0)
        if kind.endswith("Grad"):  # linear in the gradient
            return max(powers, key=lambda power: abs(power or 0))
        is_homogeneous = kind in _HOMOGENEOUS | _REDUCTIONS.keys() | {"Max", "Min"}
        return powers[0] if is_homogeneous and len(set(powers)) == 1 else None

    def _power_of_factor(self, tensor: Tensor) -> int | None:
        """Finds out whether an input of an operation contains the number of examples as a factor.

        Args:
            tensor: The input: rows, or a number that may be computed from the number of examples.

        Returns:
            The exponent p of the factor n ** p, where n is the number of the replica's examples: as
            from `power` for rows, 1 for n itself and -1 for its inverse. 0 if the input does not
            depend on n; None if it depends on n in another way, such as the root of n.
        """
        if rows_axis(tensor) is not None:
            return self.power(tensor)
        kinds = self.of(tensor)
        if kinds in (_COUNT, _INVERSE):
            return 1 if kinds == _COUNT else -1
        used = used_by(tensor, self._origins)
        if used == _COUNT:
            return None  # such as the root of the number
        return self.power(tensor) if used and tensor.op.type in _HOMOGENEOUS else 0

    def are_chosen(self, tensor: Tensor, *, by_value: bool = True) -> bool:
        """Returns whether a tensor has other rows than all examples have: selected or added ones.

        Rows are selected by `tf.boolean_mask`, `tf.math.top_k` or a slice, for example. The mean
        over selected rows is not a mean over the examples. The slice by which kfit itself takes the
        replica's examples out of the batch selects nothing. What layers select counts only if it
        comes after their products.

        Args:
            tensor: The tensor.
            by_value: Whether a selection counts that decides on each example by itself, as a mask
                does, and whether added rows of zeros count. The sum over such rows is a sum over
                the examples.
        """
        origins = self._origins
        if by_value and _has_values_of_ragged(tensor, origins):
            return True
        if added_rows(tensor, origins) > (Added.NOTHING if by_value else Added.ZEROS):
            return True
        near = {id(each) for each in made_from(tensor, origins, stop=LAYERS | _OF_EACH_RAGGED_ROW)}
        return any(
            (
                _chooses_by_place(each.op, origins)
                or (by_value and each.op.type in _CHOICES_BY_VALUE)
            )
            and not origins.are_splits(each.op.inputs[0])
            and (id(each) in near or is_of_step(each.op))
            for each in made_from(tensor, origins, stop=CALLS | _OF_EACH_RAGGED_ROW)
        )


def _has_values_of_ragged(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor has a row for each value of ragged or sparse examples.

    Their number differs from that of the examples. An operation that adds up or lays out the values
    of each example makes rows of examples of them.
    """
    found = made_from(tensor, origins, stop=_OF_EACH_RAGGED_ROW)
    followed = [each.op for each in found if each.op.type not in _OF_EACH_RAGGED_ROW]
    sources = (each for op in followed for each in op.inputs)
    return any(origins.are_values(each) for each in (tensor, *sources))


def _chooses_by_place(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether an operation selects examples by their place or rank in the batch.

    Args:
        op: An operation of the replica's step.
        origins: The record of which tensors kfit has marked.
    """
    if op.type in _CHOICES_BY_PLACE:
        axis, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
        return rank is None or axis == rank - 1 or op.type != "TopKV2"
    if op.type == "NonMaxSuppressionV5":
        return True
    if op.type in ("Split", "SplitV"):
        return _splits_rows(op, origins)
    return op.type == "StridedSlice" and _cuts_rows(op)


def is_chosen_by_place(tensor: Tensor, origins: Origins) -> bool:
    """Returns whether a tensor has rows that were selected by their place in the batch.

    Args:
        tensor: A tensor of the replica's step.
        origins: The record of which tensors kfit has marked.
    """
    stop = LAYERS | CALLS | _REDUCTIONS.keys() | _OTHER_REDUCTIONS | {"ConcatV2"}
    return any(
        _chooses_by_place(each.op, origins) for each in made_from(tensor, origins, stop=stop)
    )


def made_from(value: Tensor, origins: Origins, *, stop: set[str]) -> list[Tensor]:
    """Returns a tensor, and the tensors of the step's graph that it is computed from.

    The graph is followed backwards from the tensor. It is not followed beyond tensors that kfit has
    marked, such as the replica's examples and sums over all replicas. The result contains no marked
    tensors.

    Args:
        value: The tensor.
        origins: The record of which tensors kfit has marked.
        stop: Types of operations, such as "MatMul", whose inputs are not followed.
    """
    found: dict[int, Tensor] = {}
    waiting = [value]
    while waiting:
        tensor = waiting.pop()
        is_marked = origins.known_kind(tensor) is not None
        if id(tensor) in found or is_marked or not origins.is_of_step(tensor):
            continue
        found[id(tensor)] = tensor
        if tensor.op.type not in stop:
            waiting += tensor.op.inputs
    return list(found.values())


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
    waiting, seen, found = [tensor], set(), _NONE
    while waiting:
        tensor = waiting.pop()
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        known = origins.known_kind(tensor)
        if known is not None and "rows" in known:
            return frozenset({"rows"})
        if known is not None or not origins.is_of_step(tensor):
            continue
        if tensor.op.type in SIZES:
            of = tensor.op.inputs[tensor.value_index]
            found = found if rows_axis(of) is None else _COUNT
        elif not is_inner_size(tensor):
            waiting += tensor.op.inputs
    return found


def _is_random(op: tf.Operation) -> bool:
    return bool(op.op_def.is_stateful) and op.type != "ReadVariableOp"


def _chooses(op: tf.Operation) -> bool:
    """Returns whether an operation inside of a loop or a branch may choose among the examples."""
    if op.type in CALLS | _CHOICES_BY_VALUE | _CHOICES_BY_PLACE | {"Split", "SplitV"}:
        return any(rows_axis(each) is not None for each in op.inputs)
    if op.type == "TensorListGetItem":
        return rows_axis(op.inputs[0]) == 0
    if op.type == "StridedSlice":
        return _cuts_rows(op)
    if op.type == "GatherV2":
        return rows_axis(op.inputs[0]) is not None and rows_axis(
            op.inputs[0]
        ) == tf.get_static_value(op.inputs[2])
    return op.type in {"ConcatV2", "Pad", "PadV2"} and rows_axis(op.outputs[0]) is not None


def _divided(above: Kinds, below: Kinds) -> Kinds:
    if not below:
        return above
    if below == {"count"} and not above:
        return _INVERSE
    return frozenset({"mean" if below == {"count"} and above == _SUM else "other"})


def _is_added_up(tensor: Tensor) -> bool:
    """Returns whether a tensor consists of sums over examples, such as the counts of a histogram.

    The first axis of such a tensor is that of the bins, and not that of the examples, even if the
    size of the axis is not static.
    """
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    return tensor.op.type in _ADD_UP


def _cuts_rows(op: tf.Operation) -> bool:
    """Returns whether a slice may leave out some of the examples."""
    axis, rank = rows_axis(op.inputs[0]), op.inputs[0].shape.rank
    if axis is None or rank is None:
        return axis is not None
    index = next(index for index, of in parts_of_slice(op, rank) if of == axis)
    if index is None:
        return False
    steps = tf.get_static_value(op.inputs[3])
    if steps is None or abs(steps[index]) != 1:
        return True
    return not (op.get_attr("begin_mask") & op.get_attr("end_mask")) >> index & 1


def _splits_rows(op: tf.Operation, origins: Origins) -> bool:
    """Returns whether an operation splits a batch along the axis of the examples.

    To split as many batches as were put together, as contrastive learning does, is none.

    Args:
        op: The operation, a Split or SplitV.
        origins: The record of which tensors kfit has marked.
    """
    tensor, axis = (op.inputs[1], op.inputs[0]) if op.type == "Split" else op.inputs[::2]
    at, rows, rank = tf.get_static_value(axis), rows_axis(tensor), tensor.shape.rank
    if rows is None or (at is not None and rank is not None and int(at) % rank != rows):
        return False
    put_together = (
        each.op.inputs
        for each in made_from(tensor, origins, stop=CALLS)
        if each.op.type == "ConcatV2" and tf.get_static_value(each.op.inputs[-1]) == 0
    )
    return all(len(parts) - 1 != op.get_attr("num_split") for parts in put_together)
