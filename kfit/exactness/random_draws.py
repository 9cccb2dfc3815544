"""Wrappers by which each replica draws its own random numbers from one shared seed state.

Each replica adds an offset of its own to the seeds that it draws. The state of a `SeedGenerator`
changes as on one device, so it stays equal on all replicas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.replica_context import current_step, one_of_several

Tensor = Any

_SEED_STRIDE = 1_000_003
"""Times the replica's index, it is added to the seed. A prime, so that the seeds all differ."""


def own_draws(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a replacement of `SeedGenerator.next`, for steps on several replicas.

    With the replacement, each replica draws different random numbers: the replica's index, times a
    constant, is added to the seed that is drawn. The generator's state, which all replicas share,
    changes as on one device.
    """

    def next_seed(self: Any, ordered: bool = True) -> Tensor:
        replica = one_of_several()
        if replica is None:
            return original(self, ordered)
        replica.draws = True
        try:
            seed = original(self, ordered)
        finally:
            replica.draws = False
        replica.assigned.pop(id(self.state), None)  # the state changes equally on all replicas
        if not isinstance(replica.index, int):
            own = tf.cast(replica.index, seed.dtype) * tf.constant(_SEED_STRIDE, seed.dtype)
            return replica.origins.own(seed + tf.stack([own, tf.zeros_like(own)]))
        if replica.index:
            seed = seed + tf.constant([replica.index * _SEED_STRIDE, 0], seed.dtype)
        return replica.origins.own(seed)

    return next_seed


def shared_generator(original: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a replacement of Keras' function that returns the global seed generator.

    Keras has one such generator for each thread, and each replica is traced in a thread of its own.
    So on replicas the replacement returns one generator that all replicas of the step share.
    """

    def global_seed_generator() -> keras.random.SeedGenerator:
        step = current_step()
        return original() if step is None else step.seed_generator()

    return global_seed_generator
