"""Computes what one replica contributes to a value of the whole batch.

A replica has a part of the batch, and computes values of this part. A value of the whole batch, as
one device has it, is made of the values of all replicas in one of these ways:

- Of a value with a row for each example the rows of all replicas are joined, in their order. If it
  is a slice of such a value, the slice is taken of all rows.
- Any other number, vector or matrix is the sum of the replicas' parts. How a part is computed
  depends on the value's type.
- A float is taken for an estimate, such as a mean over the replica's own examples (see
  `kfit.exactness.scalar_estimates`). The part is the estimate times the replica's share of the
  examples.
- An integer that is computed from examples is taken for a count, which is a part already. Any other
  integer, also one that is added to a count, is taken to be equal on all replicas.
- What cannot be added, such as a boolean or a string, is that of the first replica.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kfit.exactness.batch_kinds import (
    addends_of,
    axis_of_rows,
    has_other_rows,
    kinds_of,
    power_of_number,
)
from kfit.exactness.batch_warnings import warn_if_combined
from kfit.exactness.replica_context import Replica
from kfit.exactness.scalar_estimates import estimate_of
from kfit.graphs.chosen_rows import cuts_rows
from kfit.graphs.placed_axes import parts_of_slice
from kfit.graphs.row_indices import are_places
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sources import made_from
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.graph_checks import check_in_graph
from kfit.internals.graphs import CALLS

Tensor = Any

_PARTS = ("begin", "end", "strides")
"""The inputs of a slice, after what is sliced."""
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
"""The attributes of a slice that say what each of its parts means."""


def as_tensors(value: Any) -> Any:
    """Returns a value of a step as tensors, which graphs can pass on; `()` stands for None.

    Ragged and sparse tensors stay what they are. Any other value becomes a dense tensor.
    """
    if value is None or (isinstance(value, tuple) and not value):
        return ()
    return value if is_composite(value) else tf.convert_to_tensor(value)


def is_composite(value: Any) -> bool:
    """Returns whether a value is a ragged or a sparse tensor."""
    return isinstance(value, (tf.RaggedTensor, tf.SparseTensor))


def rows_of(
    value: Any, replica: Replica, described: str
) -> tuple[Any, Callable[[Any], Any]] | None:
    """Finds the rows of a replica's own examples from which a value of the whole batch is made.

    It warns if these are not the rows that one device would compute.

    Args:
        value: The value of the replica, as `as_tensors` returns it.
        replica: The replica that is being traced.
        described: What to call the value in a warning, beginning with a capital letter.

    Returns:
        The rows, along the first axis, and a function from the rows of all replicas to the value of
        the whole batch. None if the value has no row for each example, and is no slice of such a
        value.
    """
    if is_composite(value):
        return replica.own_rows(value), lambda rows: rows
    if not isinstance(value, tf.Tensor):
        return None
    sliced = slice_of_rows(value, replica)
    if sliced is not None:
        source, used, cut = sliced
        warn_of_other_rows(source, replica, described)
        return replica.own_rows(source)[:used], cut
    axis = axis_of_rows(value, replica)
    if axis is None:
        return None
    warn_of_other_rows(value, replica, described)
    if value.shape.rank is None:
        message = (
            f"{described} has a shape that the graph does not show, and was taken for rows of the "
            "examples. But it is a scalar. Tell its shape by `tf.ensure_shape(value, ())`."
        )
        with tf.control_dependencies([check_in_graph(tf.rank(value) > 0, message, [value])]):
            value = tf.identity(value)
    return replica.own_rows(_moved(value, axis, 0)), lambda rows: _moved(rows, 0, axis)


def slice_of_rows(
    value: Tensor, replica: Replica
) -> tuple[Tensor, int | None, Callable[[Tensor], Tensor]] | None:
    """Finds the rows of which a value is a slice by place, such as `x[:4]` or `x[0]`.

    Returns:
        The rows of all examples of the replica; how many of them can be used at most, or None if
        all can; and a function that takes the slice of the rows of all replicas. None if the value
        is no such slice, or the graph does not show it.
    """
    if not replica.can_be_read or not replica.origins.is_of_step(value):
        return None
    op = value.op
    while op.type in ("Identity", "StopGradient"):
        op = op.inputs[0].op
    if op.type != "StridedSlice":
        return None
    source = op.inputs[0]
    given = {each: tf.get_static_value(op.inputs[i]) for i, each in enumerate(_PARTS, 1)}
    if any(each is None for each in given.values()) or source.shape.rank is None:
        return None
    if axis_of_rows(source, replica) != 0 or not cuts_rows(op):
        return None
    masks = {mask: op.get_attr(mask) for mask in _MASKS}
    index = next(index for index, axis in parts_of_slice(op, source.shape.rank) if axis == 0)
    begin, end, step = (int(given[each][index]) for each in _PARTS)
    begins = masks["begin_mask"] >> index & 1 or begin >= 0
    ends = not masks["end_mask"] >> index & 1 and end > 0 and step > 0
    return (
        source,
        end if begins and ends else None,
        lambda rows: tf.raw_ops.StridedSlice(input=rows, **given, **masks),
    )


def warn_of_other_rows(rows: Tensor, replica: Replica, described: str) -> None:
    """Warns if the row of an example depends on the replica's other examples or their number.

    It warns as well if there are rows beside those of the examples, if some were left out by their
    place, and if there are several batches, one after the other.
    """
    warn_if_combined(rows, replica, described, are_weighted=True)
    is_graph = replica.can_be_read and isinstance(rows, tf.Tensor)
    are_several = is_graph and _are_several_batches(rows)
    if (
        are_several
        or (is_graph and _are_places(rows, replica))
        or has_other_rows(rows, replica, by_value=False)
        or power_of_number(rows, replica) != 0
    ):
        warn_user(
            f"{described} has a row for each example, but the rows depend on the number of "
            "examples, or are others than those of the examples. Each replica computes them from "
            "its own examples, and what you get are the rows of all replicas, one replica after "
            "the other. So they depend on how many replicas there are. Take the examples of all "
            "replicas, by `tf.distribute.get_replica_context().all_gather(values, axis=0)`."
        )


def _are_places(rows: Tensor, replica: Replica) -> bool:
    """Returns whether rows are the places of examples, counted from 0 in each replica's part."""
    if not rows.dtype.is_integer:
        return False
    taken = {"GatherNd", "GatherV2", *CALLS}  # what stands at places
    found = made_from(rows, replica.origins, stop=taken)
    return are_places(rows, replica.origins) or any(each.op.type == "Where" for each in found)


def _are_several_batches(rows: Tensor) -> bool:
    """Returns whether rows are those of several batches of the same examples, put together."""
    op = rows.op
    while op.type in ("Identity", "Cast", "StopGradient"):
        op = op.inputs[0].op
    if op.type == "Tile":
        times = tf.get_static_value(op.inputs[1])
        return rows_axis(op.inputs[0]) == 0 and times is not None and bool(times[0] > 1)
    if op.type != "ConcatV2" or tf.get_static_value(op.inputs[-1]) != 0:
        return False
    return sum(rows_axis(part) == 0 for part in op.inputs[:-1]) > 1


def _moved(tensor: Tensor, axis: int, to: int) -> Tensor:
    """Returns a tensor with the given axis moved to another place."""
    if axis == to:
        return tensor
    axes = list(range(tensor.shape.rank))
    axes.insert(to, axes.pop(axis))
    return tf.transpose(tensor, axes)


def part_of(described: str, value: Tensor, replica: Replica, *, is_result: bool) -> Tensor:
    """Returns a replica's part of a value that has no row for each example.

    Args:
        described: What to call the value in a warning, beginning with a capital letter.
        value: The value of the replica.
        replica: The replica that is being traced.
        is_result: Whether the value is computed from metrics' results, whose mean is logged.

    Returns:
        The part. The sum of all replicas' parts is the value of the whole batch; of a value that
        cannot be added, such as a boolean, the part of the first replica is.
    """
    if value.dtype.is_floating:
        if not is_result and not replica.has_all:
            value = estimate_of(value, replica, described)
        return replica.weigh(value)
    adds_up = value.dtype.is_integer
    if tf.executing_eagerly():
        return replica.zero_if_empty(value) if adds_up else value
    addends = addends_of(value, replica) if adds_up and not replica.has_all else []
    if len(addends) > 1 and all(each.kinds <= {"sum", "count"} for each in addends):
        terms = [(each.times(1), each.kinds) for each in addends]
        return sum(
            replica.zero_if_empty(term) if kinds else _of_first(term, replica)
            for term, kinds in terms
        )
    kinds = frozenset() if replica.has_all else kinds_of(value, replica)
    if not kinds <= {"unknown", *(("sum", "count") if adds_up else ())}:
        warn_user(
            f"{described} is computed from the examples of a replica, and is neither their number "
            "nor a sum over them. It depends on how many replicas there are. Have a metric compute "
            "it, or take it over all replicas, by "
            "`tf.distribute.get_replica_context().all_gather(values, axis=0)`."
        )
    if not adds_up:
        return value
    is_count = bool(kinds) and _is_count(value, replica)
    return replica.zero_if_empty(value) if is_count else _of_first(value, replica)


def _of_first(value: Tensor, replica: Replica) -> Tensor:
    """Returns the addend of a replica to a value that is equal on all replicas."""
    return tf.where(tf.equal(replica.index, 0), value, tf.zeros_like(value))


def _is_count(value: Tensor, replica: Replica) -> bool:
    """Returns whether an integer that a step returns is a count over this replica's own examples.

    The counts of all replicas are later summed. An integer is taken for a count if it is computed
    from the replica's examples. If the graph may contain their number as a constant, a constant
    equal to it is taken for a count, too. Any other integer is taken to be equal on all replicas.
    The result is False if each replica has the whole batch.
    """
    if replica.has_all:
        return False
    if replica.origins.is_own(value, ()):
        return True
    if replica.can_be_read or value.shape.rank != 0 or not isinstance(replica.examples, int):
        return False
    return bool(tf.get_static_value(value) == replica.examples)


def of_one_shape(said: str, parts: Sequence[Tensor]) -> list[Any]:
    """Checks that the replicas' parts of a value have one shape, as they must to be added.

    Args:
        said: The beginning of the error's text, such as "The model's step returns 'x'".
        parts: The parts of this task's replicas.

    Returns:
        Assertions to run in the graph. The list is empty if the static shapes show that all is
        well, or if the step runs eagerly.

    Raises:
        ValueError: If the static shapes, or those of eager values, show that they differ.
    """
    message = (
        f"{said}, whose shape differs between the replicas, so that "
        "their values cannot be added. Return a value of one shape, as of `tf.math.bincount` with "
        "`minlength` and `maxlength`, or one with a row for each example along the first axis."
    )
    first, *others = (part.shape for part in parts)
    if not all(first.is_compatible_with(each) for each in others):
        raise ValueError(f"{message} Received: shapes {[tuple(part.shape) for part in parts]}")
    if all(part.shape.is_fully_defined() for part in parts):
        return []
    sizes = [tf.shape(part) for part in parts]
    return [
        check_in_graph(tf.reduce_all(sizes[0] == each), message, [sizes[0], each])
        for each in sizes[1:]
    ]
