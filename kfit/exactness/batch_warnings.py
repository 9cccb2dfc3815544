"""Warns of values that depend on how many replicas there are, because of how they are computed."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import tensorflow as tf

from kfit.exactness.across_examples import combines_examples
from kfit.exactness.across_layers import warn_of_layers
from kfit.exactness.batch_kinds import (
    has_other_rows,
    power_of_number,
)
from kfit.exactness.replica_context import Replica
from kfit.graphs.origins import inputs_of
from kfit.graphs.sources import made_from
from kfit.internals.graphs import CALLS

Tensor = Any

FROM_ALL_REPLICAS = (
    "Or compute it from the examples of all replicas, as a maximum needs, by "
    "`tf.distribute.get_replica_context().all_gather(values, axis=0)`; where sums are enough, take "
    'those of all replicas by `all_reduce("sum", value)` in place of `all_gather`.'
)
"""What helps if a replica cannot compute a value of the batch from its own examples."""


def warn_if_combined(
    value: Tensor, replica: Replica, what: str, *, are_weighted: bool = False
) -> None:
    """Warns if a loss, or a part of it, combines a replica's examples with each other.

    For example, a contrastive loss compares each example with all others. A replica could compare
    only its own examples, so that the loss would depend on the number of replicas.

    Args:
        value: The loss, or its value for each example.
        replica: The replica that is being traced.
        what: What to call the value in the warning, beginning with a capital letter.
        are_weighted: Whether the values for each example will have weights.
    """
    if replica.trial is None:
        warn_of_layers(value, replica, are_summed=not are_weighted)
    if are_used(value, replica.results.keys(), replica):
        replica.warn(
            f"{what} is computed from the result of a metric. In a step each replica has that of "
            "its own examples only, so that the numbers depend on how many replicas there are. "
            "Let a callback pass the result to a variable of the model between the steps."
        )
    if combines_examples(value, replica, are_weighted=are_weighted):
        replica.warn(
            f"{what} combines the examples of the batch with each other, as a contrastive loss "
            "does. Each replica combines its own examples only, so that the numbers depend on how "
            "many replicas there are. Take the examples of all replicas for this, by "
            "`tf.distribute.get_replica_context().all_gather(values, axis=0)`."
        )


def are_used(value: Any, tensors: Collection[int], replica: Replica) -> bool:
    """Returns whether a value is computed from any of the tensors with the given ids."""
    if not tensors or not isinstance(value, tf.Tensor) or not replica.hides_rows:
        return False
    found = made_from(value, replica.origins, stop=CALLS)
    return any(id(each) in tensors for one in found for each in (one, *inputs_of(one)))


def warn_of_rows(
    values: Tensor,
    replica: Replica,
    what: str,
    *,
    are_averaged: bool = False,
    are_weighted: bool = False,
) -> None:
    """Warns if the value of an example depends on the replica's other examples or their number.

    It warns as well if there are rows beside those of the examples, or not all of them.

    Args:
        values: The values, with a row for each example.
        replica: The replica that is being traced.
        what: What to call the values in the warning, beginning with a capital letter.
        are_averaged: Whether Keras divides the sum of the values by their number, so that examples
            that a mask has left out make a difference.
        are_weighted: Whether the values will have weights, or a mask.
    """
    warn_if_combined(values, replica, what, are_weighted=are_weighted)
    if has_other_rows(values, replica, by_value=are_averaged):
        warn_of(what, replica)
    if power_of_number(values, replica) != 0:
        replica.warn(
            f"{what} for each example depends on the number of examples in the batch. On several "
            "replicas this is the number of each replica's own examples, so that the numbers "
            "depend on how many replicas there are. Give Keras the values without the number: its "
            "losses and `keras.metrics.Mean` compute their mean."
        )


def warn_of(what: str, replica: Replica) -> None:
    """Warns that a value of the batch cannot be computed from the replicas' values.

    Args:
        what: What to call the value, beginning with a capital letter.
        replica: The replica that is being traced.
    """
    replica.warn(
        f"{what} is neither a mean nor a sum over the examples of the batch, as far as the graph "
        "shows (the root of a mean, a ratio of sums, a maximum, a mean over some of the examples). "
        "Each replica computes it from its own examples, so that the numbers depend on how many "
        "replicas there are. Let a loss return a value for each example, with `sample_weight` or a "
        f"mask where some do not count. {FROM_ALL_REPLICAS}"
    )
