"""The list of Keras and TensorFlow functions that are patched while a step is traced.

Keras computes on each replica independently: it averages a loss over the replica's own examples,
clips gradients before they are summed, and draws the same dropout mask on all replicas. Inside
`keras_for_replicas` the functions that do so are replaced by wrappers, which the modules of
`kfit.exactness` define. A wrapper changes only what a replica's step does. Anywhere else, such as
in other threads, it calls the original function.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kfit.exactness import (
    added_losses,
    assignments,
    batch_losses,
    collectives,
    loss_estimates,
    metric_sums,
    moments,
    optimizer_update,
    random_draws,
    row_states,
    scalar_estimates,
    tape_gradients,
    traced_functions,
    whole_batch,
)
from kfit.internals import patch_points as points
from kfit.internals.patching import Point, patched

_LOCK = threading.RLock()
_depth: list[None] = []

_PATCHES: list[tuple[Point, Callable[[Any], Any]]] = [
    (points.SCALE_LOSS_BY_REPLICAS, loss_estimates.unscaled),
    (points.UNSCALE_LOSS_BY_REPLICAS, loss_estimates.unscaled),
    (points.REDUCE_LOSS, loss_estimates.global_estimate),
    (points.CALL_LOSS, batch_losses.over_all_replicas),
    (points.CALL_ANY_LOSS, whole_batch.loss_of_all),
    (points.MOMENTS, moments.over_all_replicas),
    (points.CALL_RNN, row_states.of_own_examples),
    (points.ADD_LOSS, added_losses.of_replica),
    (points.ADD_LOSS, added_losses.counted_once),
    (points.GET_OWN_LOSSES, added_losses.of_replica),
    (points.CLEAR_LOSSES, added_losses.of_replica),
    (points.COMPUTE_LOSS, optimizer_update.noted_values),
    (points.UPDATE_MEAN, metric_sums.shared_mean),
    (points.UPDATE_SUM, metric_sums.shared_sum),
    (points.UPDATE_MEAN_OF_FUNCTION, whole_batch.metric_of_all),
    *((point, metric_sums.adding_up) for point in points.UPDATE_OTHER_METRICS),
    (points.NEXT_SEED, random_draws.own_draws),
    (points.GLOBAL_SEED_GENERATOR, random_draws.shared_generator),
    (points.ASSIGN, assignments.noted_assign),
    *((point, assignments.only_of_keras) for point in points.CHANGE_TF_VARIABLE),
    (points.SCALE_LOSS, optimizer_update.scaled_loss),
    (points.APPLY, optimizer_update.apply),
    *((point, optimizer_update.apply) for point in points.APPLY_OF_SEVERAL),
    (points.SUM_GRADIENTS, optimizer_update.no_second_sum),
    (points.SCALE_LOSS_WITH_SCALE, optimizer_update.scaled_loss),
    (points.APPLY_WITH_SCALE, optimizer_update.apply_scaled),
    (points.TF_APPLY_WITH_SCALE, optimizer_update.apply_scaled),
    (points.BUILD_OPTIMIZER, optimizer_update.built_for_all),
    (points.CALL_FUNCTION, traced_functions.of_step),
    (points.GRADIENT, tape_gradients.of_tape),
    (points.GRADIENTS, tape_gradients.of_graph),
    (points.AVERAGE_LOSS, scalar_estimates.of_replica_batch),
    (points.REGULARIZATION_LOSS, scalar_estimates.unscaled_sum),
    (points.MERGE_CALL, optimizer_update.no_meeting_by_itself),
    (points.ALL_REDUCE, collectives.of_examples),
    (points.ALL_GATHER, collectives.gathered_from_examples),
]
"""The functions to patch, each with the function of kfit that makes its wrapper."""


@contextmanager
def keras_for_replicas() -> Iterator[None]:
    """Context in which functions of Keras and TensorFlow are patched, to trace a step in it.

    With the patches, several replicas compute what one device would compute from the global batch.
    The context must be entered in the cross-replica context (in the strategy's scope, but on no
    replica). It can be nested. If a different thread enters it, that thread waits until the first
    one has left it.

    Raises:
        ImportError: If the installed Keras or TensorFlow lacks one of the functions to patch.
    """
    with _LOCK, ExitStack() as stack:
        if not _depth:
            own = [(each, whole_batch.own_loss_of_all) for each in points.calls_of_own_losses()]
            for point, wrap in [*_PATCHES, *own]:
                stack.enter_context(patched(point, wrap))
        _depth.append(None)
        try:
            yield
        finally:
            _depth.pop()
