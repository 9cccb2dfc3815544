"""Reads from the graph how a value is computed from a replica's examples, operation by operation.

For example, `tf.reduce_mean` makes a mean of one value for each example, and the sum of two means
is a mean. Loops and branches are read as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.graphs.added_rows import Added, added_rows
from kfit.graphs.chosen_rows import are_chosen, may_choose
from kfit.graphs.kinds import COUNT, INVERSE, NONE, SUM, Kinds
from kfit.graphs.one_example import is_of_one_example, takes_one_example
from kfit.graphs.origins import Origins, captured
from kfit.graphs.rows_axis import enter, is_inner_size, rows_axis
from kfit.graphs.sizes import SIZES, are_numbers
from kfit.graphs.sources import CONTRACTIONS, LAYERS, made_from, used_by
from kfit.internals.graphs import BRANCHES, CALLS, LOOPS

Tensor = Any

_LINEAR = {
    *("Identity", "Cast", "StopGradient", "PreventGradient", "CheckNumerics", "EnsureShape"),
    *("AddV2", "Add", "AddN", "Sub", "Neg", "Pack", "ConcatV2", "Squeeze", "ExpandDims"),
    *("Reshape", "Transpose", "StridedSlice", "Unpack", "IdentityN", "PlaceholderWithDefault"),
}
"""Operations whose result is a mean if all inputs are means, and a sum if all inputs are sums."""
AS_IT_IS = {"Identity", "EnsureShape", "CheckNumerics", "Reshape", "Squeeze"}
DIVISIONS = {"RealDiv", "DivNoNan", "Div"}
_PRODUCTS = {"Mul", "MulNoNan"}
_REDUCTIONS = {"Mean": "mean", "Sum": "sum"}
_OTHER_REDUCTIONS = {"Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin"}
_ADD_UP = {
    *("L2Loss", "Bincount", "DenseBincount", "SegmentSum", "SegmentSumV2", "UnsortedSegmentSum"),
    *("ScatterNd", "HistogramFixedWidth"),
}
_HOMOGENEOUS = {*_LINEAR, "Abs", "LeakyRelu", "Relu", "Select", "SelectV2"}
"""Operations whose result is n times as large if their inputs are, for a positive n."""
_COPYING = {"BroadcastTo": 0, "Fill": 1, "GatherV2": 0, "Tile": 0}
"""Operations that repeat or pick values, and the index of the input that holds these."""
_TINY = 1e-6
_COUNTED: Kinds = frozenset({"count", "sum"})
_JOINING = {"AddV2", "Add", "AddN", "Sub", "Pack", "ConcatV2"}
"""Operations that put several tensors together, each of which may be of another kind."""
_MOST_ELEMENTS = 1000
_MOST_ROUNDS = 4
"""How often the body of a loop is read until the kinds of its results stay the same."""
_ONES = {"Fill", "OnesLike"}
_KINDS_OF_SUMS: dict[int | None, Kinds] = {0: SUM, -1: frozenset({"mean"})}
"""The kind of a sum over rows, by the power of their number by which they are multiplied."""


class Reading:
    """A reader of a replica's graph, which finds the kinds of tensors: {"mean"}, {"sum"} and so on.

    The kinds (see `Kind`) say how a tensor depends on the replica's examples. They are found from
    the operation that computes the tensor and the kinds of its inputs, and are remembered.

    Args:
        origins: The record of which tensors of the replica's step may differ between replicas.
        inside: The graph of a loop or a branch, if its tensors are to be read.
        given: The kinds of the inputs of this graph.
        zeros: The places of those inputs that are zero, such as a total before a loop.
    """

    def __init__(
        self,
        origins: Origins,
        inside: Any = None,
        given: Sequence[Kinds] = (),
        zeros: Sequence[int] = (),
    ) -> None:
        self._origins = origins
        self._inside = inside
        inputs = inside.inputs if inside is not None else ()
        self._known: dict[int, Kinds] = {
            id(tensor): kinds for tensor, kinds in zip(inputs, given, strict=False)
        }
        self._zeros = {id(inputs[place]) for place in zeros}
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

        The sum must be in the step's own graph (not in a function within it), and its kind (such as
        a mean over the examples) must not be known already.
        """
        return self._origins.known_kind(tensor) is None and self._origins.is_of_step(tensor)

    def _read(self, tensor: Tensor) -> Kinds:
        known = self._origins.known_kind(tensor)
        if known is not None:
            return known
        if tensor.graph is not self._inside:
            if not self._origins.is_of_step(tensor):
                return frozenset({"unknown"})
            if tensor.op.type == "Placeholder":  # of a branch, a loop or a function
                outer = captured(tensor)
                return frozenset({"unknown"}) if outer is None else self.of(outer)
            if not self._origins.is_own(tensor, ()):
                return NONE
        if rows_axis(tensor) is not None and not is_added_up(tensor):
            return frozenset({"rows"})
        if is_inner_size(tensor):
            return NONE  # all replicas have rows of one batch
        if self._inside is None and is_of_one_example(tensor):
            return self._of_one_example(tensor.op)
        if tensor.op.type == "IdentityN":  # of a function with a gradient of its own
            return self.of(tensor.op.inputs[tensor.value_index])
        if tensor.op.type in LOOPS | BRANCHES | CALLS:
            return self._of_called(tensor.op)[tensor.value_index]
        found = self._of_operation(tensor.op)
        return (found - {"rows"}) | {"other"} if "rows" in found else found

    def _of_one_example(self, op: tf.Operation) -> Kinds:
        """Returns {"rows"} if an operation computes with nothing but one example."""
        if takes_one_example(op):
            return frozenset({"rows"})
        own = [each for each in op.inputs if self.of(each)]
        are_of_one = all(rows_axis(each) is None and self.of(each) == {"rows"} for each in own)
        return frozenset({"rows" if are_of_one else "other"})

    def _of_called(self, op: tf.Operation) -> list[Kinds]:
        """Returns the kinds of the results of a loop, a branch or a function, from its graphs."""
        if op.name not in self._results:
            self._results[op.name] = self._read_called(op)
        return self._results[op.name]

    def _read_called(self, op: tf.Operation) -> list[Kinds]:
        others: list[Kinds] = [frozenset({"other"})] * len(op.outputs)
        graphs = enter(op)
        operations = [each for graph in graphs for each in graph.get_operations()]
        if not graphs and op.type in CALLS:
            return [frozenset({"unknown"})] * len(op.outputs)
        if not graphs or any(map(may_choose, operations)):
            return others
        if op.type in CALLS:
            return self._results_inside(graphs[0], list(op.inputs))
        if self.of_decision(op):
            return others  # the examples decide which branch runs, or how often the loop goes round
        if op.type in LOOPS:
            return self._rounds(op, graphs[0])[-1]
        case = tf.get_static_value(op.inputs[0])
        if case is not None:
            place = int(not case) if op.type.endswith("If") else int(case)
            graphs = [graphs[place if 0 <= place < len(graphs) else -1]]
        of_each = [self._results_inside(graph, op.inputs[1:]) for graph in graphs]
        results = zip(*(graph.outputs for graph in graphs), strict=True)
        return [
            self._of_either(kinds, cases)
            for kinds, cases in zip(zip(*of_each, strict=True), results, strict=True)
        ]

    def _of_either(self, kinds: Sequence[Kinds], cases: Sequence[Tensor]) -> Kinds:
        """Returns the kinds of a result of branches, from those of each branch."""
        found = NONE.union(*kinds)
        are_equal = [each for each, of in zip(cases, kinds, strict=True) if not of]
        is_mixed = found & _COUNTED and not all(map(self._is_nothing, are_equal))
        return frozenset({"other"}) if is_mixed else found

    def of_decision(self, op: tf.Operation) -> Kinds:
        """Returns the kinds of what decides which branch runs, or how often a loop goes round.

        If the result is empty, all replicas take the same branch, or as many rounds.

        Args:
            op: A loop, or the choice of a branch, in the step's graph.
        """
        if op.type in BRANCHES:
            return self.of(op.inputs[0])
        if not (graphs := enter(op)):
            return frozenset({"unknown"})
        body, condition = graphs
        return NONE.union(*self._results_inside(condition, op.inputs, self._rounds(op, body)[0]))

    def of_decisions(self, around: Sequence[tf.Operation]) -> Kinds:
        """Returns the kinds of what decides about each of several branches and loops.

        Args:
            around: Branches and loops within each other, the innermost one first.
        """
        found, reading, outer = NONE, self, None
        for op in reversed(around):
            if outer is not None:
                reading = Reading(self._origins, op.graph, reading._given_to(outer))
            found |= reading.of_decision(op)
            outer = op
        return found

    def _given_to(self, op: tf.Operation) -> list[Kinds]:
        """Returns the kinds of the inputs of the graphs that an operation calls, in any round."""
        if op.type in LOOPS:
            return self._rounds(op, enter(op)[0])[0]
        return [self.of(each) for each in op.inputs[1 if op.type in BRANCHES else 0 :]]

    def _rounds(self, op: tf.Operation, body: Any) -> tuple[list[Kinds], list[Kinds]]:
        """Returns the kinds of the values that all rounds of a loop begin with, and end with."""
        given = [self.of(each) for each in op.inputs]
        for _ in range(_MOST_ROUNDS):
            results = self._results_inside(body, op.inputs, given)
            after = [before | kinds for before, kinds in zip(given, results, strict=False)]
            if after == given:
                return given, results
            given = after
        return given, [frozenset({"other"})] * len(given)

    def _results_inside(
        self, graph: Any, inputs: Sequence[Tensor], given: Sequence[Kinds] | None = None
    ) -> list[Kinds]:
        """Returns the kinds of the results of a graph.

        Args:
            graph: The graph of a loop, a branch or a function.
            inputs: What is passed to it; to a loop before the first round.
            given: The kinds of the inputs in any round; None if they are those of `inputs`.
        """
        kinds = [self.of(each) for each in inputs] if given is None else given
        zeros = [i for i, each in enumerate(inputs) if not kinds[i] and self._is_nothing(each)]
        reading = Reading(self._origins, graph, kinds, zeros)
        return [reading.of(each) for each in graph.outputs]

    def _of_operation(self, op: tf.Operation) -> Kinds:
        kind, inputs = op.type, list(op.inputs)
        if kind in SIZES:
            if rows_axis(inputs[0]) is None or not used_by(op.outputs[0], self._origins):
                return NONE
            return frozenset({"other"}) if are_chosen(inputs[0], self._origins) else COUNT
        if kind.startswith("TensorList"):
            return NONE.union(*(self.of(each) for each in inputs))
        if kind == "Cast" and inputs[0].dtype.is_floating and not op.outputs[0].dtype.is_floating:
            return frozenset({"other"}) if self.of(inputs[0]) else NONE
        if kind in _LINEAR:
            found = NONE.union(*(self.of(each) for each in inputs))
            return frozenset({"other"}) if found & _COUNTED and self._shifts(op) else found
        if kind in _COPYING:
            data = inputs.pop(_COPYING[kind])
            if not any(self.of(each) for each in inputs):
                return self.of(data)
            inputs = list(op.inputs)
        if kind in DIVISIONS:
            return divided(self.of(inputs[0]), self.of(inputs[1]))
        if kind in _REDUCTIONS or kind in _OTHER_REDUCTIONS:
            return self._reduced(op)
        own = [each for each in map(self.of, inputs) if each]
        if not own:  # constants, sizes of other axes, or random numbers, which differ
            return frozenset({"other"}) if _is_random(op) else NONE
        if kind in _PRODUCTS and len(own) == 1:
            return own[0]
        if kind in _PRODUCTS and set(own) == {SUM, INVERSE}:
            return frozenset({"mean"})
        if kind in _PRODUCTS and set(own) == {frozenset({"mean"}), COUNT}:
            return SUM
        if kind == "Maximum" and own == [{"count"}] and self._is_at_least_one(op):
            return own[0]
        if kind in ("Reciprocal", "Inv") and own == [{"count"}]:
            return INVERSE
        if kind == "UnsortedSegmentSum" and self.of(inputs[0]) <= {"mean", "sum"}:
            return self.of(inputs[0])  # a sparse gradient (`tf.IndexedSlices`) that was made dense
        if kind in ("Bincount", "DenseBincount"):
            own = own[:1]  # the counted numbers; the other input is the number of bins
        if _adds_up(op) or kind in CONTRACTIONS:
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
            return NONE
        if before == {"count"}:
            return COUNT if op.type == "Prod" and _has_one_number(reduced) else frozenset({"other"})
        truncates = op.type == "Mean" and not op.outputs[0].dtype.is_floating
        if "rows" not in before:
            # The size of a histogram may depend on what the examples of the replica hold.
            is_mean = op.type == "Mean" and not self._has_bins(reduced)
            is_fine = (is_mean or op.type == "Sum" or before <= {"mean"}) and not truncates
            return before if op.type in _REDUCTIONS and is_fine else frozenset({"other"})
        is_whole = rows_axis(reduced) is not None or op.outputs[0].shape.rank == 0
        if op.type in _OTHER_REDUCTIONS or truncates or not is_whole:
            return frozenset({"other"})
        by_value = op.type == "Mean" or reduced.op.type in _ONES
        if are_chosen(reduced, self._origins, by_value=by_value):
            return frozenset({"other"})  # the divisor of a mean is the number of selected examples
        if reduced.op.type in _ONES and op.type == "Sum":
            return COUNT
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

    def _is_at_least_one(self, op: tf.Operation) -> bool:
        """Returns whether a maximum, of a number of examples, is no larger than this number."""
        bounds = [tf.get_static_value(each) for each in op.inputs if not self.of(each)]
        return all(each is not None and np.max(each) <= 1 for each in bounds)

    def _shifts(self, op: tf.Operation) -> bool:
        """Returns whether an operation puts what is equal on all replicas beside a sum or a number.

        Examples are `n - 1` with the number n of examples, and `tf.stack([total, 1.0])`. The result
        is no sum over the examples: all replicas together would count the constant several times.
        """
        if op.type not in _JOINING:
            return False
        parts = op.inputs[:-1] if op.type == "ConcatV2" else op.inputs
        return not all(self.of(each) or self._is_nothing(each) for each in parts)

    def _is_nothing(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is zero, or a tiny constant, which keeps a divisor from being 0.

        A large tensor is looked at only if one operation makes it of zeros.
        """
        if id(tensor) in self._zeros or tensor.op.type == "ZerosLike":
            return True
        if tensor.op.type == "Fill":
            return self._is_nothing(tensor.op.inputs[1])
        is_number = tensor.dtype.is_floating or tensor.dtype.is_integer
        if not is_number or (tensor.shape.num_elements() or 0) > _MOST_ELEMENTS:
            return False
        outer = captured(tensor) if tensor.op.type == "Placeholder" else None
        value = tf.get_static_value(tensor if outer is None else outer)
        return value is not None and (not value.size or bool(abs(value).max() <= _TINY))

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
        outer = captured(tensor) if tensor.op.type == "Placeholder" else None
        if outer is not None:
            return self.power(outer)
        kind, inputs = tensor.op.type, list(tensor.op.inputs)
        if kind in AS_IT_IS | _REDUCTIONS.keys() | _OTHER_REDUCTIONS:
            inputs = inputs[:1]
        powers = [self._power_of_factor(each) for each in inputs if each.dtype.is_floating]
        if not any(powers):
            return None if None in powers else 0
        if None in powers:
            return None
        if kind in _PRODUCTS:
            return sum(filter(None, powers))
        if kind in DIVISIONS:
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
        if kinds in (COUNT, INVERSE):
            return 1 if kinds == COUNT else -1
        used = used_by(tensor, self._origins)
        if used == COUNT:
            return None  # such as the root of the number
        return self.power(tensor) if used and tensor.op.type in _HOMOGENEOUS else 0


def _has_one_number(sizes: Tensor) -> bool:
    """Returns whether only one of several sizes is computed from the number of examples."""
    if sizes.shape.rank == 0:
        return True
    found = are_numbers(sizes, rows_axis)
    return found is not None and None not in found and found.count(True) == 1


def _is_random(op: tf.Operation) -> bool:
    return bool(op.op_def.is_stateful) and op.type != "ReadVariableOp"


def divided(above: Kinds, below: Kinds) -> Kinds:
    """Returns the kinds of a quotient, from those of the dividend and the divisor."""
    if not below:
        return above
    if below == {"count"} and not above:
        return INVERSE
    return frozenset({"mean" if below == {"count"} and above == SUM else "other"})


def is_added_up(tensor: Tensor) -> bool:
    """Returns whether a tensor consists of sums over examples, such as the counts of a histogram.

    The first axis of such a tensor is that of the bins, and not that of the examples, even if the
    size of the axis is not static.
    """
    while tensor.op.type in ("Cast", "Identity"):
        tensor = tensor.op.inputs[0]
    return _adds_up(tensor.op)


def _adds_up(op: tf.Operation) -> bool:
    """Returns whether an operation adds up values over examples; a histogram of each does not."""
    is_of_each = op.type == "DenseBincount" and op.inputs[0].shape.rank == 2
    return op.type in _ADD_UP and not is_of_each
