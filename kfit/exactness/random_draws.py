"""Wrappers by which each replica draws its own random numbers from one state that all share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kfit.exactness.replica_context import current_step, one_of_several

Tensor = Any

_SEED_STRIDE = 1_000_003
"""Added to the seed for each replica. A prime, so that seeds of replicas and generators differ."""


def own_draws(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps `SeedGenerator.next`: each replica gets its own seed from the state that all share."""

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
    """Wraps Keras' global seed generator: all replicas of a step use the generator of the step."""

    def global_seed_generator() -> keras.random.SeedGenerator:
        step = current_step()
        return original() if step is None else step.seed_generator

    return global_seed_generator
