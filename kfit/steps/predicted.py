"""Combines the predictions of several replicas.

Predictions have a row for each example as a rule. Others, such as a mean over the examples, are
combined as the values are that a step returns (`kfit.steps.replica_parts`), as far as the graph
shows how they are computed.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.owned import owned_variables
from kfit.distribute.variable_values import is_per_replica
from kfit.exactness.batch_kinds import addends_of, axis_of_rows, kinds_of, sizes_of_parts
from kfit.exactness.own_code import warn_if_unread
from kfit.exactness.replica_context import Replica, current_step
from kfit.graphs.kinds import NONE, Kinds
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.variables import tf_variable
from kfit.steps.replica_parts import as_tensors, part_of, rows_of, slice_of_rows, warn_of_other_rows
from kfit.steps.returned import Returned

Tensor = Any


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
        return part_of("A scalar that `predict_step` returns", value, replica, is_result=False)
    described = "A prediction"
    if not isinstance(value, tf.Tensor) or _has_usual_rows(value, replica):
        if isinstance(value, tf.Tensor) and not replica.origins.have_inner_values:
            warn_of_other_rows(value, replica, described)
        returned.rows[name] = as_they_are
        return replica.own_rows(value)
    if replica.can_be_read and (found := rows_of(value, replica, described)) is not None:
        rows, returned.rows[name] = found
        return rows
    kinds: Kinds = NONE.union(*(each.kinds for each in addends_of(value, replica)))
    if not kinds and not _reads_own_variables(value, replica, model):
        return value
    if kinds and kinds <= _kinds_that_add_up(value):
        returned.sums.add(name)
        return part_of(described, value, replica, is_result=False)
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
    """Returns the kinds of values of which `part_of` knows the part of each replica."""
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
    return axis_of_rows(prediction, replica) == 0 and slice_of_rows(prediction, replica) is None


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
