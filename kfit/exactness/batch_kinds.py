"""Finds out from the graph whether a value is a mean or a sum over a replica's examples.

The value for the global batch can be computed from the replicas' values if the value is a mean over
the examples (each replica's mean is weighted by its share of the examples), a sum over the examples
(the replicas' sums are added up), or a sum of such terms. It cannot be computed if the value is the
root of a mean, a ratio of two sums or a maximum. A loss, metric or log of the user's own code may
be of any kind. The graph that is being traced shows the kind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from kfit.exactness.replica_context import Replica, current_step
from kfit.graphs.added_rows import added_rows
from kfit.graphs.chosen_rows import are_chosen
from kfit.graphs.kind_reading import AS_IT_IS, DIVISIONS, Reading, divided, is_added_up
from kfit.graphs.kinds import COUNT, INVERSE, Kinds
from kfit.graphs.one_example import is_of_one_example
from kfit.graphs.rows_axis import rows_axis

Tensor = Any

_SUMS = {"Add", "AddV2", "Sub"}


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
    if not replica.can_be_read:
        return frozenset({"unknown"})
    kinds = Reading(replica.origins).of(value)
    is_shape = kinds == COUNT and value.op.type == "Shape" and value.shape != (1,)
    return frozenset({"other"}) if is_shape else kinds


def has_one_example(value: Any, replica: Replica) -> bool:
    """Returns whether a value is computed from one example, and stands for those of all.

    The body of `tf.vectorized_map` and of a Jacobian computes such values.

    Args:
        value: A tensor of the replica's step, or a number.
        replica: The replica that is being traced.
    """
    if not isinstance(value, tf.Tensor) or kinds_of(value, replica) != {"rows"}:
        return False
    return is_of_one_example(value) and rows_axis(value) is None


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
    if not isinstance(value, tf.Tensor) or not replica.can_be_read:
        return True
    if not replica.origins.is_of_step(value):
        return True
    if rows_axis(value) is not None and not is_added_up(value):
        return True
    return "rows" in Reading(replica.origins).of(value)


def axis_of_rows(value: Tensor, replica: Replica) -> int | None:
    """Returns the axis of a value that has an element for each of a replica's examples, or None.

    The value may be of any dtype. If the graph cannot be read, it is the first axis whose size is
    not static. If there is none, it is the very first axis, if its size is the number of a
    replica's examples.

    Args:
        value: A tensor of the replica's step.
        replica: The replica that is being traced.
    """
    if value.shape.rank == 0:
        return None
    origins = replica.origins
    is_known = replica.can_be_read and origins.known_kind(value) is not None
    if is_known or (replica.can_be_read and origins.is_of_step(value)):
        return (rows_axis(value) or 0) if "rows" in Reading(replica.origins).of(value) else None
    sizes = value.shape.as_list() if value.shape.rank else [None]
    if None in sizes:
        return sizes.index(None)
    may_be_rows = not replica.can_be_read and sizes[0] in sizes_of_parts(replica)
    return 0 if may_be_rows else None


def sizes_of_parts(replica: Replica) -> set[int]:
    """Returns the numbers of examples that the replicas have, as far as they are known.

    The result is the same on all replicas if the size of the batch is known. A replica without
    examples has a stand-in row.
    """
    step, size = current_step(), _static(replica.batch_size)
    if step is None or size is None:
        own = _static(replica.examples)
        return set() if own is None else {max(own, 1)}
    least, rest = divmod(size, step.strategy.num_replicas)
    return {least, least + 1} if rest else {least}


def _static(number: Any) -> int | None:
    """Returns a number that is known; in a graph, that of a tensor only if it is a constant."""
    if isinstance(number, tf.Tensor):
        number = int(number) if tf.executing_eagerly() else tf.get_static_value(number)
    return None if number is None else int(number)


def has_rows_elsewhere(value: Any, replica: Replica) -> bool:
    """Returns whether the examples are along another axis of a value than the first.

    Args:
        value: A tensor of the replica's step, or a number.
        replica: The replica that is being traced.
    """
    if not isinstance(value, tf.Tensor) or not has_rows_of_examples(value, replica):
        return False
    return replica.can_be_read and bool(rows_axis(value))


def has_other_rows(value: Tensor, replica: Replica, *, by_value: bool) -> bool:
    """Returns whether rows are not those of all examples: rows were added, or some were selected.

    Args:
        value: The rows, a tensor of the replica's step.
        replica: The replica that is being traced.
        by_value: Whether rows count that were selected by their values, as by a mask.
    """
    if not isinstance(value, tf.Tensor) or not replica.can_be_read:
        return False
    if added_rows(value, replica.origins):
        return True
    return are_chosen(value, replica.origins, by_value=by_value)


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
    if not isinstance(value, tf.Tensor) or not replica.can_be_read:
        return 0
    return Reading(replica.origins).power(value)


class Addend(NamedTuple):
    """A term of a sum, such as of a loss: the product of a tensor and factors.

    The factors and divisors are equal on all replicas, or one of them is the number of examples.

    Attributes:
        tensor: The tensor that is multiplied.
        factor: A number or scalar tensor by which `tensor` is multiplied.
        kinds: How the product is computed from the replica's examples: "mean", "sum", ... (see
            `Kind`). Empty if it is equal on all replicas.
        factors: Tensors of the graph by which `tensor` is multiplied as well. They may depend on
            variables.
        divisors: Tensors of the graph by which it is divided.
    """

    tensor: Tensor
    factor: Any
    kinds: Kinds
    factors: tuple[Tensor, ...] = ()
    divisors: tuple[Tensor, ...] = ()

    @property
    def leaves(self) -> list[Tensor]:
        """The tensors of the graph that the term, and so its gradient, is computed from."""
        return [self.tensor, *self.factors, *self.divisors]

    def times(self, number: Any) -> Tensor:
        """Returns the term, multiplied by a number or scalar tensor."""
        product = self.factor * number
        for each in self.factors:
            product = product * each
        for each in self.divisors:
            product = product / each
        return self.tensor * tf.cast(product, self.tensor.dtype)


def addends_of(value: Tensor, replica: Replica) -> list[Addend]:
    """Splits a value into the terms that are added up in it, as far as the graph shows them.

    For example, a user's loss may be the sum of a mean and of a sum over the examples. Each term
    must then be weighted in its own way.

    Args:
        value: A tensor of numbers without a row for each example, such as a scalar.
        replica: The replica that is being traced.

    Returns:
        The terms; only the value itself if it cannot be split.
    """
    if not replica.can_be_read:
        return [Addend(value, 1, frozenset({"unknown"}))]
    reading = Reading(replica.origins)
    found: list[Addend] = []
    waiting = [(Addend(value, 1, frozenset()), False)]
    while waiting:
        whole, is_divided = waiting.pop()
        may_be = reading.may_be_taken_apart(whole.tensor)
        parts = _parts(whole, reading) if may_be else None
        product = _by_number(whole, reading) if may_be and not is_divided else None
        if product is not None:
            waiting.append((product, True))
        elif parts is not None:
            waiting += [(part, is_divided) for part in reversed(parts)]
        else:
            kinds = reading.of(whole.tensor)
            kinds = divided(kinds, COUNT) if is_divided else kinds
            found.append(whole._replace(kinds=kinds))
    return found


def _parts(whole: Addend, reading: Reading) -> list[Addend] | None:
    """Splits a term into those that the last operation of its tensor adds up.

    Args:
        whole: The term.
        reading: A reader of the graph. It finds which inputs of the operation are equal on all
            replicas, as a factor must be.

    Returns:
        The terms, whose kinds are not read: a, and b with the factor -1, for `a - b`; and b with
        the factor c for `b * c`. None for any other operation, and if the terms differ from the
        tensor in dtype, or in shape; those of a sum may be broadcast.
    """
    tensor = whole.tensor
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    if kind == "Sum" and inputs[0].op.type == "Pack":
        kind, inputs = "AddN", list(inputs[0].op.inputs)
    if kind in AS_IT_IS:
        inputs = inputs[:1]
    if any(each.dtype != tensor.dtype for each in inputs):
        return None
    if kind == "Mul":
        for one, other in (inputs, inputs[::-1]):
            if _are_alike(other, tensor) and not reading.of(one):
                return [_multiplied(whole, other, one)]
        return None
    if kind in _SUMS:
        sign = -1 if kind == "Sub" else 1
        return [_term(whole, inputs[0]), _term(whole, inputs[1], sign)]  # perhaps broadcast
    if not all(_are_alike(each, tensor) for each in inputs[: 1 if kind in DIVISIONS else None]):
        return None
    if kind in AS_IT_IS or kind == "AddN":
        return [_term(whole, each) for each in inputs]
    if kind == "Neg":
        return [_term(whole, inputs[0], -1)]
    if kind in DIVISIONS and not reading.of(inputs[1]):
        return [_divided(whole, *inputs)]
    return None


def _by_number(whole: Addend, reading: Reading) -> Addend | None:
    """Splits a term into a sum of terms of several kinds, and what this sum is multiplied by.

    Args:
        whole: The term, such as `(tf.reduce_sum(values) + penalty) / n` with the number n of
            examples.
        reading: A reader of the graph.

    Returns:
        The sum as the tensor of a term, which has a constant divided by the number of examples as a
        factor. None if the tensor is no product of such factors.
    """
    tensor = whole.tensor
    kind, inputs = tensor.op.type, list(tensor.op.inputs)
    products: list[Addend] = []
    if kind == "Mul":
        products = [
            _multiplied(whole, total, one)
            for total, one in (inputs, inputs[::-1])
            if reading.of(one) == INVERSE and "other" in reading.of(total)
        ]
    elif kind in DIVISIONS and reading.of(inputs[1]) == COUNT and "other" in reading.of(inputs[0]):
        products = [_divided(whole, *inputs)]
    return next((each for each in products if _are_alike(each.tensor, tensor)), None)


def _term(whole: Addend, tensor: Tensor, sign: int = 1) -> Addend:
    return whole._replace(tensor=tensor, factor=whole.factor * sign)


def _multiplied(whole: Addend, tensor: Tensor, factor: Tensor) -> Addend:
    return whole._replace(tensor=tensor, factors=(*whole.factors, factor))


def _divided(whole: Addend, tensor: Tensor, divisor: Tensor) -> Addend:
    return whole._replace(tensor=tensor, divisors=(*whole.divisors, divisor))


def _are_alike(one: Tensor, other: Tensor) -> bool:
    """Returns whether two tensors have the same static shape, as two scalars have."""
    return one.shape.is_fully_defined() and one.shape == other.shape
