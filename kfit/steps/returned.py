"""Combines the values that a model's step returns on several replicas.

Of a custom `train_step` or `test_step` these are the values to be logged:

- A result of a metric is replaced by the same metric's result over the examples of all replicas,
  under the name that the step gives it.
- Of a value with a row for each example, such as predictions, the rows of all replicas are logged,
  in their order. If the step returns a slice of such a value, that of all rows is logged.
- Any other number, vector or matrix is taken for a value of the whole batch: each replica returns a
  part, and the sum of the parts is logged. How the part is computed depends on the value's type.
- A float is taken for an estimate, such as a mean over the replica's own examples (see
  `kfit.exactness.scalar_estimates`). The part is the estimate times the replica's share of the
  examples.
- An integer that is computed from examples is taken for a count, which is a part already. Any other
  integer, also one that is added to a count, is taken to be equal on all replicas.
- What cannot be added, such as a boolean or a string, is that of the first replica.

Predictions have a row for each example as a rule. Others are combined in the same way, as far as
the graph shows how they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.distribute.owned import owned_variables
from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.batch_kinds import (
    addends_of,
    axis_of_rows,
    has_other_rows,
    kinds_of,
    power_of_number,
    sizes_of_parts,
)
from kfit.exactness.chosen_rows import cuts_rows
from kfit.exactness.kinds import Kinds
from kfit.exactness.own_code import warn_if_unread
from kfit.exactness.placed_axes import parts_of_slice
from kfit.exactness.replica_context import Replica, current_replica, current_step
from kfit.exactness.scalar_estimates import estimate_of, warn_if_combined
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals import patch_points as points
from kfit.internals.patching import patched
from kfit.internals.variables import tf_variable
from kfit.steps.metrics import flat_logs

Tensor = Any

_COPYING = {"Cast", "EnsureShape", "Identity", "Reshape", "Snapshot", "Squeeze", "StopGradient"}
"""The operations whose result is the number that they got, perhaps of another dtype or shape."""
_PARTS = ("begin", "end", "strides")
"""The inputs of a slice, after what is sliced."""
_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
"""The attributes of a slice that say what each of its parts means."""


@dataclass
class Returned:
    """A record of how the values that a step returns are combined over the replicas.

    It is filled while the step is traced. Values that are in none of the records are those of the
    first replica.

    Attributes:
        results: Maps the name of each value that is a metric's result to the name of that result.
            The name of a value that is computed from nothing but metrics' results is mapped to "".
        metrics: The metrics of these results, by their ids.
        sums: The names of the values of which each replica returns an addend.
        rows: For the name of each value of which each replica returns rows, a function that makes
            the value to be logged of the rows of all replicas.
    """

    results: dict[str, str] = field(default_factory=dict)
    metrics: dict[int, keras.Metric] = field(default_factory=dict)
    sums: set[str] = field(default_factory=set)
    rows: dict[str, Callable[[Any], Any]] = field(default_factory=dict)

    def forget(self, name: str) -> None:
        """Removes what is recorded of a value, such as by the trace of an earlier graph.

        All graphs of a step share one record, which each of them reads while it is traced. A step
        may return something else under the same name in another graph.
        """
        self.results.pop(name, None)
        self.sums.discard(name)
        self.rows.pop(name, None)


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


@contextmanager
def noted_results(model: keras.Model) -> Iterator[None]:
    """Context in which each result that a metric of `model` returns is recorded.

    Each replica records its results, with their names, in `Replica.results`. So `of_batch` can
    later tell which of the values that a step returns are results of metrics.
    """
    with ExitStack() as stack:
        for metric in {id(metric): metric for metric in model.metrics}.values():
            stack.enter_context(patched(points.RESULT_OF_METRIC, _noted(metric), of=metric))
        yield


def _noted(metric: keras.Metric) -> Callable[[Any], Any]:
    def wrap(original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            value = original()
            replica = current_replica()
            if replica is not None:
                named = value if isinstance(value, dict) else {metric.name: value}
                replica.results.update(
                    {id(each): (each, name, metric) for name, each in named.items()}
                )
            return value

        return result

    return wrap


def of_batch(
    outputs: Any, replica: Replica, model: keras.Model, returned: Returned | None = None
) -> Any:
    """Puts this replica's part of the logged value in place of each value that a step returned.

    Called while the step of one replica is traced.

    Args:
        outputs: What the step returned. If it is not a dict, it is returned unchanged.
        replica: A description of the replica that is being traced.
        model: The model, whose metrics the step may have used.
        returned: A record to fill, which says how the parts of all replicas are to be combined.

    Returns:
        A dict from names to tensors, variables, or `()` in place of None. If `outputs` is not a
        dict, it is returned unchanged.
    """
    if not isinstance(outputs, dict):
        return outputs
    record = Returned() if returned is None else returned
    return {
        name: _of_value(name, value, replica, model, record)
        for name, value in flat_logs(outputs).items()
    }


def _of_value(
    name: str, value: Any, replica: Replica, model: keras.Model, returned: Returned
) -> Any:
    returned.forget(name)
    if isinstance(value, (tf.Variable, keras.Variable)):
        return value
    result = _result_of(name, value, replica)
    if result is not None:
        returned.results[name], metric = result
        returned.metrics[id(metric)] = metric
    elif _is_of_metrics(name, value, replica, model):
        returned.results[name] = ""
    is_result = name in returned.results
    value, described = as_tensors(value), f"The value {name!r} that the step returns"
    if not is_result and (found := _rows_of(value, replica, described)) is not None:
        if replica.has_all:
            return value
        rows, returned.rows[name] = found
        return rows
    if not isinstance(value, tf.Tensor):
        return value
    if value.dtype.is_floating or value.dtype.is_integer:
        returned.sums.add(name)
    return _part(described, value, replica, is_result=is_result)


def _rows_of(
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
    sliced = _slice_of_rows(value, replica)
    if sliced is not None:
        source, used, cut = sliced
        _warn_of_rows(source, replica, described)
        return replica.own_rows(source)[:used], cut
    axis = axis_of_rows(value, replica)
    if axis is None:
        return None
    _warn_of_rows(value, replica, described)
    return replica.own_rows(_moved(value, axis, 0)), lambda rows: _moved(rows, 0, axis)


def _slice_of_rows(
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


def _warn_of_rows(rows: Tensor, replica: Replica, described: str) -> None:
    """Warns if the row of an example depends on the replica's other examples or their number.

    It warns as well if there are rows beside those of the examples, or some were left out by their
    place.
    """
    warn_if_combined(rows, replica, described, are_weighted=True)
    if has_other_rows(rows, replica, by_value=False) or power_of_number(rows, replica) != 0:
        warn_user(
            f"{described} has a row for each example, but the rows depend on the number of "
            "examples, or are others than those of the examples. Each replica computes them from "
            "its own examples, and what is logged are the rows of all replicas. So they depend on "
            "how many replicas there are. Take the examples of all replicas, by "
            "`tf.distribute.get_replica_context().all_gather(values, axis=0)`."
        )


def _moved(tensor: Tensor, axis: int, to: int) -> Tensor:
    """Returns a tensor with the given axis moved to another place."""
    if axis == to:
        return tensor
    axes = list(range(tensor.shape.rank))
    axes.insert(to, axes.pop(axis))
    return tf.transpose(tensor, axes)


def of_predictions(outputs: Any, replica: Replica, model: keras.Model, returned: Returned) -> Any:
    """Puts this replica's part of the value to be returned in place of each prediction.

    Called while the step of one replica is traced.

    Args:
        outputs: What a `predict_step` returned, of any structure.
        replica: A description of the replica that is being traced.
        model: The model.
        returned: A record to fill, which says how the parts of all replicas are to be combined. The
            name of a prediction is its place in `tf.nest.flatten(outputs)`.
    """
    parts = [
        _of_prediction(name, value, replica, model, returned)
        for name, value in named_predictions(outputs)
    ]
    return tf.nest.pack_sequence_as(outputs, parts)


def named_predictions(outputs: Any) -> list[tuple[str, Any]]:
    """Returns the predictions in a structure, each with its name in a `Returned`."""
    return [(str(place), value) for place, value in enumerate(tf.nest.flatten(outputs))]


def as_they_are(rows: Any) -> Any:
    """Returns the rows of all replicas, which are a prediction already."""
    return rows


def _of_prediction(
    name: str, value: Any, replica: Replica, model: keras.Model, returned: Returned
) -> Any:
    returned.forget(name)
    if value is None:
        return value
    if isinstance(value, (tf.Variable, keras.Variable)) and not is_per_replica(value):
        return tf.convert_to_tensor(value)
    value = as_tensors(value)
    if isinstance(value, tf.Tensor) and value.shape.rank == 0:
        if value.dtype.is_floating or value.dtype.is_integer:
            returned.sums.add(name)
            _warn_if_unread(value, replica, model)
        return _part("A scalar that `predict_step` returns", value, replica, is_result=False)
    if not isinstance(value, tf.Tensor) or _has_usual_rows(value, replica):
        returned.rows[name] = as_they_are
        return replica.own_rows(value)
    described = "A prediction"
    if replica.can_be_read and (found := _rows_of(value, replica, described)) is not None:
        rows, returned.rows[name] = found
        return rows
    kinds = kinds_of(value, replica)
    if not kinds and not _reads_own_variables(value, replica, model):
        return value
    if kinds and kinds <= _kinds_that_add_up(value):
        returned.sums.add(name)
        return _part(described, value, replica, is_result=False)
    if kinds != {"unknown"} or _has_other_size(value, replica):
        _warn_of_no_rows()
    returned.rows[name] = as_they_are
    return replica.own_rows(value)


def _warn_if_unread(scalar: Tensor, replica: Replica, model: keras.Model) -> None:
    """Warns if a scalar is taken for a mean or a count because there is no graph that shows it."""
    step = current_step()
    if step is not None and kinds_of(scalar, replica) == {"unknown"}:
        warn_if_unread(model, step.strategy)


def _kinds_that_add_up(value: Tensor) -> Kinds:
    """Returns the kinds of values of which `_part` knows the part of each replica."""
    if value.dtype.is_floating:
        return frozenset({"mean", "sum", "count"})
    return frozenset({"sum", "count"} if value.dtype.is_integer else ())


def _has_usual_rows(prediction: Tensor, replica: Replica) -> bool:
    """Returns whether a prediction is known to have a row for each example along its first axis.

    The number of ragged or sparse examples may be a constant in the graph, which then does not show
    what has rows of them: if the sizes fit, the prediction has.
    """
    if not replica.can_be_read:
        return False
    size = prediction.shape[0] if prediction.shape.rank else None
    sizes = sizes_of_parts(replica)
    fits = size is None or not sizes or size in sizes
    if replica.origins.have_inner_values and fits and kinds_of(prediction, replica):
        return True
    return axis_of_rows(prediction, replica) == 0 and _slice_of_rows(prediction, replica) is None


def _has_other_size(prediction: Tensor, replica: Replica) -> bool:
    """Returns whether the first axis is known to be of another size than all examples together.

    A prediction may also have several rows for each example, one example after the other.
    """
    size, examples = prediction.shape[0] if prediction.shape.rank else None, replica.examples
    if size is None or not (isinstance(examples, int) or tf.executing_eagerly()):
        return False
    return bool(size % max(int(examples), 1))


def _reads_own_variables(value: Tensor, replica: Replica, model: keras.Model) -> bool:
    """Returns whether a value is computed from variables of which each replica has its own value.

    These are per-replica variables, such as those of metrics, and variables to which the step has
    assigned what it has computed from the replica's examples.
    """
    step = current_step()
    assert step is not None
    own = [variable for variable in owned_variables(model) if is_per_replica(variable)]
    for variable, values in replica.assigned.values():
        own += [variable] if any(map(replica.origins.is_own, values)) else []
    handles = [copy.handle for v in own for copy in step.strategy.local_results(tf_variable(v))]
    return replica.origins.reads(value, handles)


def _warn_of_no_rows() -> None:
    warn_user(
        "A prediction has no row for each example along its first axis, and kfit cannot see how "
        "the value of the whole batch is made of the values of its parts: it is no mean and no sum "
        "over the examples, as far as the graph of the step shows. Each replica predicts its own "
        "examples, and what `predict` returns are the predictions of all replicas, one after the "
        "other along the first axis. So it depends on how many replicas there are. Return the "
        "examples along the first axis, and compute the rest from what `predict` returns."
    )


def _is_of_metrics(name: str, value: Any, replica: Replica, model: keras.Model) -> bool:
    """Returns whether a value that a step returns is computed from metrics' variables.

    Without a graph, a value is taken to be computed from a metric if it has the metric's name and
    the step has updated this metric.

    Args:
        name: The name under which the step returns the value.
        value: The value that the step returns.
        replica: A description of the replica that is being traced.
        model: The model, whose metrics the step may have used.
    """
    step = current_step()
    assert step is not None
    own = [v for m in model.metrics for v in m.variables if is_per_replica(v)]
    if tf.executing_eagerly() or step.strategy.static_shapes:
        # Without a graph to read, the value is taken to be computed from the metric of this name,
        # if the step has updated that metric.
        of_name = [v for m in model.metrics if m.name == name for v in m.variables]
        return any(id(v) in replica.assigned for v in of_name)
    handles = [copy.handle for v in own for copy in step.strategy.local_results(tf_variable(v))]
    return replica.origins.reads(value, handles)


def _result_of(name: str, value: Any, replica: Replica) -> tuple[str, keras.Metric] | None:
    """Returns the name and metric of a result if `value` is it or a copy of it, else None.

    In a graph, a value is a copy if only operations such as casts and reshapes lie between the
    result and the value. Without a graph, a value is taken for a copy if it has the name of a
    result and is equal to it.

    Args:
        name: The name under which the step returns the value.
        value: The value that the step returns.
        replica: A description of the replica, with the results of metrics.
    """
    while id(value) not in replica.results:
        if not isinstance(value, tf.Tensor):
            return None
        if tf.executing_eagerly():
            for result, known, metric in replica.results.values():
                if known == name and np.array_equal(result, value):
                    return name, metric
            return None
        if value.op.type not in _COPYING:
            return None
        value = value.op.inputs[0]
    return replica.results[id(value)][1:]


def _part(described: str, value: Tensor, replica: Replica, *, is_result: bool) -> Tensor:
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
    is_count = _is_count(value, replica)
    return replica.zero_if_empty(value) if is_count else _of_first(value, replica)


def _of_first(value: Tensor, replica: Replica) -> Tensor:
    """Returns the addend of a replica to a value that is equal on all replicas."""
    return tf.where(tf.equal(replica.index, 0), value, tf.zeros_like(value))


def _is_count(value: Tensor, replica: Replica) -> bool:
    """Returns whether an integer that a step returns is a count over this replica's own examples.

    The counts of all replicas are later summed. An integer is taken for a count if it is computed
    from the replica's examples, or is a constant equal to their number. Any other integer is taken
    to be equal on all replicas. The result is False if each replica has the whole batch.
    """
    if replica.has_all:
        return False
    known = tf.get_static_value(value) if value.shape.rank == 0 else None
    of_examples = known is not None and isinstance(replica.examples, int)
    return replica.origins.is_own(value, ()) or bool(of_examples and known == replica.examples)


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
    return [tf.debugging.assert_equal(sizes[0], each, message) for each in sizes[1:]]
