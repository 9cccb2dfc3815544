"""Warns of a variable whose declared `aggregation` does not fit what a step assigns to it.

With `aggregation="mean"` the replicas' values are averaged, and with "sum" what they have added is
summed. That is the value of one device only if each replica assigns a mean over its examples, or
adds a sum over them. The mean of clipped values, for example, is not the clipped mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from kfit.exactness.across_examples import combines_examples
from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.batch_warnings import FROM_ALL_REPLICAS
from kfit.exactness.metric_updates import changes_of
from kfit.exactness.replica_context import Replica
from kfit.graphs.kinds import Kinds

Tensor = Any

_ADDED: Kinds = frozenset({"sum", "count"})
_FITS = {
    "mean": "a mean over the examples of the batch",
    "sum": "its value plus a sum over the examples of the batch",
}


def warn_of_misfit(
    variable: keras.Variable,
    of_layer: str,
    values: Sequence[Tensor],
    handles: Sequence[Tensor],
    replica: Replica,
) -> None:
    """Warns if a step assigns to a variable what its `aggregation` does not fit.

    Nothing is said where the graph cannot be read, as on a TPU or with `run_eagerly=True`.

    Args:
        variable: A variable of a layer, declared "mean" or "sum".
        of_layer: What the variable belongs to, for the message.
        values: What the step assigns to it on this replica, in this order.
        handles: The resource handles of the replicas' copies of the variable.
        replica: The replica that is being traced.
    """
    rule = variable.aggregation
    if rule not in _FITS or not replica.can_be_read:
        return
    fits = _is_mean if rule == "mean" else _is_added
    if all(fits(value, handles, replica) for value in values):
        return
    replica.warn(
        f"The variable {variable.path!r} of {of_layer} is declared `aggregation={rule!r}`, but a "
        f"step assigns another value to it than {_FITS[rule]}, as far as the graph shows (a value "
        "that is clipped or decays, a variance, a ratio, a maximum). Each replica computes it from "
        "its own examples, so that the numbers depend on how many replicas there are. Compute it "
        f"over all replicas, and leave out `aggregation`. {FROM_ALL_REPLICAS}"
    )


def _is_mean(value: Tensor, _: Sequence[Tensor], replica: Replica) -> bool:
    return kinds_of(value, replica) <= {"mean"} and not combines_examples(value, replica)


def _is_added(value: Tensor, handles: Sequence[Tensor], replica: Replica) -> bool:
    changes = changes_of(value, handles)
    if changes is None:
        return False
    kinds = [kinds_of(change.value, replica) for change in changes]
    are_sums = all(each and each <= _ADDED for each in kinds)
    return are_sums and not any(combines_examples(each.value, replica) for each in changes)
