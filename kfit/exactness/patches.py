"""The functions of Keras that must know of the other replicas, patched while a step is traced.

Keras leaves each replica to itself: it averages a loss over the replica's own examples, clips
gradients before they are summed, draws one dropout mask for all. Inside `keras_for_replicas` the
functions where that happens are wrapped by those of this room. These do what Keras does in every
thread and context but a replica's step, and afterwards Keras is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kfit.exactness import (
    added_losses,
    batch_losses,
    collectives,
    functions,
    losses,
    moments,
    optimizer_update,
    row_states,
    scalar_estimates,
)
from kfit.internals import patch_points as points
from kfit.internals.patching import Point, patched

_LOCK = threading.RLock()
_depth: list[None] = []

_PATCHES: list[tuple[Point, Callable[[Any], Any]]] = [
    (points.SCALE_LOSS_BY_REPLICAS, losses.unscaled),
    (points.UNSCALE_LOSS_BY_REPLICAS, losses.unscaled),
    (points.REDUCE_LOSS, losses.global_estimate),
    (points.CALL_LOSS, batch_losses.over_all_replicas),
    (points.MOMENTS, moments.over_all_replicas),
    (points.CALL_RNN, row_states.of_own_examples),
    (points.ADD_LOSS, added_losses.of_replica),
    (points.ADD_LOSS, added_losses.counted_once),
    (points.GET_OWN_LOSSES, added_losses.of_replica),
    (points.CLEAR_LOSSES, added_losses.of_replica),
    (points.COMPUTE_LOSS, optimizer_update.noted_values),
    (points.UPDATE_MEAN, losses.shared_mean),
    (points.UPDATE_SUM, losses.shared_sum),
    *((point, losses.adding_up) for point in points.UPDATE_OTHER_METRICS),
    (points.NEXT_SEED, losses.own_draws),
    (points.GLOBAL_SEED_GENERATOR, losses.shared_generator),
    (points.ASSIGN, losses.noted_assign),
    *((point, losses.only_of_keras) for point in points.CHANGE_TF_VARIABLE),
    (points.SCALE_LOSS, optimizer_update.scaled_loss),
    (points.APPLY, optimizer_update.apply),
    *((point, optimizer_update.apply) for point in points.APPLY_OF_SEVERAL),
    (points.SUM_GRADIENTS, optimizer_update.no_second_sum),
    (points.SCALE_LOSS_WITH_SCALE, optimizer_update.scaled_loss),
    (points.APPLY_WITH_SCALE, optimizer_update.apply_scaled),
    (points.CALL_FUNCTION, functions.of_step),
    (points.GRADIENT, scalar_estimates.of_gradients),
    (points.AVERAGE_LOSS, scalar_estimates.of_replica_batch),
    (points.REGULARIZATION_LOSS, scalar_estimates.unscaled_sum),
    (points.MERGE_CALL, optimizer_update.no_meeting_by_itself),
    (points.ALL_REDUCE, collectives.of_examples),
    (points.ALL_GATHER, collectives.gathered_from_examples),
]
"""What is patched, and what wraps it."""


@contextmanager
def keras_for_replicas() -> Iterator[None]:
    """Patches the functions of Keras that must know of the other replicas.

    Enter it around the tracing of a step, outside of the replicas.

    Raises:
        ImportError: If this Keras has one of the functions no more.
    """
    with _LOCK, ExitStack() as stack:
        if not _depth:
            for point, wrap in _PATCHES:
                stack.enter_context(patched(point, wrap))
        _depth.append(None)
        try:
            yield
        finally:
            _depth.pop()
