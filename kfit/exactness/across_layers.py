"""Warns of a layer that combines a replica's examples with each other, or uses their number.

A layer that subtracts the mean of the batch, for example, has the examples of its replica only, and
its outputs are the inputs of other layers: so kfit cannot compute it again from the examples of all
replicas, as it does with losses. Keras' BatchNormalization is left out here, since it is documented
to normalize by the statistics of the batch (`kfit.training.unsynchronized` tells of it).
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kfit.exactness.across_examples import added_up, combines, spread_evenly
from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.replica_context import Replica
from kfit.graphs.code_of_steps import is_of_batch_normalization, place_in_layer
from kfit.graphs.row_indices import are_beside_places, are_offsets
from kfit.graphs.rows_axis import rows_axis
from kfit.graphs.sources import made_from, used_by
from kfit.heartbeat.tracebacks import warn_user
from kfit.internals.graphs import BRANCHES, CALLS, LOOPS

Tensor = Any

_PADDING = {"MirrorPad", "Pad", "PadV2"}


def warn_of_layers(value: Tensor, replica: Replica, *, are_summed: bool = False) -> None:
    """Warns if a layer by which a value is computed combines examples, or uses their number.

    The operations that an earlier call has judged in this step are not judged again.

    Args:
        value: A tensor of the replica's step, such as a loss or a prediction.
        replica: The replica that is being traced.
        are_summed: Whether the rows of the value will be summed, or their mean taken. Then a mean
            over the examples may be added to each of them, as in a loss that a layer adds.
    """
    if not isinstance(value, tf.Tensor) or not replica.can_be_read:
        return
    origins, uses = replica.origins, replica.uses_of_rows
    found = made_from(value, origins, stop=CALLS, known=replica.judged)
    replica.judged.update({id(each): each for each in found})
    added = added_up(value, replica) if are_summed else {}
    even = spread_evenly(added, replica)
    places: dict[tuple[str, str], None] = {}
    for tensor in reversed(found):  # as they are computed
        across = id(tensor) not in even and combines(tensor, origins, uses.are_used)
        if across or (id(tensor) not in added and _displaces_rows(tensor.op, replica)):
            does = "combines the examples of the batch with each other"
        elif id(tensor) not in added and _takes_number(tensor, replica):
            does = "computes with the number of examples in the batch"
        else:
            continue
        if _takes_own_rows(tensor.op, replica):
            continue
        if place := place_in_layer(tensor.op):
            replica.told[id(tensor)] = tensor
            places[does, place] = None
    for does, place in places:
        warn_user(
            f"A layer {does}, {place}. Each replica has its own examples only, so that the numbers "
            "depend on how many replicas there are. Let the layer take the examples of all "
            "replicas, by `tf.distribute.get_replica_context().all_gather(values, axis=0)`, or "
            'sums over all of them, by `all_reduce("sum", value)`. `kfit verify` shows how far the '
            "numbers differ."
        )


def _takes_number(tensor: Tensor, replica: Replica) -> bool:
    """Returns whether an operation computes each row with the number of the replica's examples.

    The number may also be that of some of them, such as those that are positive.
    """
    op = tensor.op
    if not tensor.dtype.is_floating or op.type in LOOPS | BRANCHES | CALLS:
        return False
    if rows_axis(tensor) is None or is_of_batch_normalization(op):
        return False
    return any(
        each.dtype.is_floating
        and rows_axis(each) is None
        and used_by(each, replica.origins) == {"count"}
        and bool(kinds_of(each, replica))  # and not only the shape, as of zeros
        for each in op.inputs
    )


def _displaces_rows(op: tf.Operation, replica: Replica) -> bool:
    """Returns whether an operation puts rows to other places, which a sum over them does not show.

    So does padding before the first row, and to join parts into which the examples were divided by
    their values.
    """
    if op.type in _PADDING:
        axis, added = rows_axis(op.inputs[0]), tf.get_static_value(op.inputs[1])
        is_before = axis is not None and added is not None and bool(added[axis][0] > 0)
        return is_before and replica.uses_of_rows.are_used(op.inputs[0])
    if op.type != "ConcatV2" or op.outputs[0].shape.rank is None:
        return False
    along = tf.get_static_value(op.inputs[-1])
    if along is None or int(along) % op.outputs[0].shape.rank != rows_axis(op.outputs[0]):
        return False
    return any(
        each.op.type == "DynamicPartition"
        for part in op.inputs[:-1]
        for each in made_from(part, replica.origins, stop=CALLS | {"DynamicStitch"})
    )


def _takes_own_rows(op: tf.Operation, replica: Replica) -> bool:
    """Returns whether a gather takes rows by numbers that are added to the examples' places.

    So do graph networks that put the nodes of all graphs into one axis: each graph has its own.
    """
    if op.type not in ("GatherV2", "GatherNd"):
        return False
    are_of = are_beside_places if replica.uses_of_rows.are_used(op.inputs[1]) else are_offsets
    return are_of(op.inputs[1], replica.origins)
