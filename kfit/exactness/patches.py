"""The Keras functions that must know of the other replicas, exchanged while a step is traced.

Keras leaves each replica to itself: it averages a loss over the replica's own examples, clips
gradients before they are summed, draws one dropout mask for all. Inside `keras_for_replicas` the
functions where that happens are exchanged for the ones of `estimates` and `updates`. Those do what
Keras does in every thread and context but a replica's step, and afterwards Keras is as it was.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness import (
    added_losses,
    batch_losses,
    functions,
    moments,
    row_states,
    scalar_estimates,
)
from kfit.exactness import collectives as sums
from kfit.exactness import losses as estimates
from kfit.exactness import optimizer_update as updates
from kfit.internals.functions import FUNCTION
from kfit.internals.losses import LOSS_FUNCTION, LOSS_MODULE
from kfit.internals.patching import patched
from kfit.internals.randomness import SEED_GENERATOR_MODULE
from kfit.internals.variables import RESOURCE_VARIABLE

_LOCK = threading.RLock()
_depth: list[None] = []

_EXCHANGES: list[tuple[Any, str, Callable[[Any], Any]]] = [
    # Private: Keras scales by 1 / replicas in here, and nowhere that can be overridden.
    (LOSS_MODULE, "scale_loss_for_distribution", estimates.unscaled),
    (LOSS_MODULE, "unscale_loss_for_distribution", estimates.unscaled),
    # Private: the one place where values, weights, mask and reduction meet.
    (LOSS_MODULE, "reduce_weighted_values", estimates.global_estimate),
    # Private: where a loss calls its function.
    (LOSS_FUNCTION, "call", batch_losses.over_all_replicas),
    # Private: what a synchronized layer asks the other replicas for.
    (keras.layers.BatchNormalization, "_moments", moments.over_all_replicas),
    (keras.layers.RNN, "call", row_states.of_own_examples),
    # Private: the three places where a layer's added losses are touched.
    (keras.Layer, "add_loss", added_losses.of_replica),
    (keras.Layer, "add_loss", added_losses.counted_once),
    (keras.Layer, "_get_own_losses", added_losses.of_replica),
    (keras.Layer, "_clear_losses", added_losses.of_replica),
    (keras.Model, "compute_loss", updates.noted_values),
    (keras.metrics.Mean, "update_state", estimates.shared_mean),
    (keras.metrics.Sum, "update_state", estimates.shared_sum),
    (keras.random.SeedGenerator, "next", estimates.own_draws),
    # Private: `keras.random` asks it where no seed is given.
    (SEED_GENERATOR_MODULE, "global_seed_generator", estimates.shared_generator),
    (keras.Variable, "assign", estimates.noted_assign),
    (keras.optimizers.Optimizer, "scale_loss", updates.scaled_loss),
    (keras.optimizers.Optimizer, "apply", updates.apply),
    # Private: Keras' own sum over the replicas cannot be switched off otherwise.
    (keras.optimizers.Optimizer, "_all_reduce_sum_gradients", updates.no_second_sum),
    (keras.optimizers.LossScaleOptimizer, "scale_loss", updates.scaled_loss),
    (keras.optimizers.LossScaleOptimizer, "apply", updates.apply_scaled),
    (FUNCTION, "__call__", functions.of_step),
    (tf.GradientTape, "gradient", scalar_estimates.of_gradients),
    (tf.nn, "compute_average_loss", scalar_estimates.of_replica_batch),
    (tf.nn, "scale_regularization_loss", scalar_estimates.unscaled_sum),
    (tf.distribute.ReplicaContext, "merge_call", updates.no_meeting_by_itself),
    (tf.distribute.ReplicaContext, "all_reduce", sums.of_examples),
    (tf.distribute.ReplicaContext, "all_gather", sums.gathered_from_examples),
]
"""(owner, name, what wraps it)."""

for _change in ("assign", "assign_add", "assign_sub"):
    # Private: `tf.Variable` is a name only; this is the class of those that are made.
    _EXCHANGES.append((RESOURCE_VARIABLE, _change, estimates.only_of_keras))

for _owner in {
    base: None
    for metric in vars(keras.metrics).values()
    if isinstance(metric, type) and issubclass(metric, keras.Metric)
    for base in metric.__mro__
    if "update_state" in vars(base)
    and base not in (keras.Metric, keras.metrics.Mean, keras.metrics.Sum)
}:
    _EXCHANGES.append((_owner, "update_state", estimates.adding_up))

if hasattr(keras.optimizers, "MultiOptimizer"):  # since Keras 3.14
    _EXCHANGES.append((keras.optimizers.MultiOptimizer, "apply", updates.apply))


@contextmanager
def keras_for_replicas() -> Iterator[None]:
    """Exchanges the Keras functions that must know of the other replicas.

    Enter it around the tracing of a step, outside of the replicas.

    Raises:
        ImportError: If this Keras has one of the functions no more.
    """
    with _LOCK, ExitStack() as stack:
        if not _depth:
            for owner, name, wrap in _EXCHANGES:
                stack.enter_context(patched(owner, name, wrap))
        _depth.append(None)
        try:
            yield
        finally:
            _depth.pop()
