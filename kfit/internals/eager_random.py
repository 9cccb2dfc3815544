"""Finds TensorFlow's random generators of functions that are called outside of a graph."""

from __future__ import annotations

import random
from typing import Any

import tensorflow as tf

from kfit.internals.private import imported, uses

_context: Any = imported(
    "tensorflow.python.eager.context.context",
    because="the generator of the seeds of `tf.random.normal` and the like is in the context only",
)

_stateful_random: Any = imported(
    "tensorflow.python.ops.stateful_random_ops",
    because="`tf.random.get_global_generator` would make the generator if there is none",
)


@uses(
    "tensorflow.python.eager.context.context._rng",
    because="no public function reads or sets the generator of seeds",
)
def generator_of_seeds() -> random.Random | None:
    """Returns the generator from which operations such as `tf.random.normal` draw their seeds.

    Each operation that is called outside of a graph, without a seed of its own, draws one. So this
    generator decides all their numbers.

    Returns:
        The generator; None if the program has not called `tf.random.set_seed`.
    """
    return getattr(_context(), "_rng", None)


global_seed: Any = imported(
    "tensorflow.python.eager.context.global_seed",
    because="what `tf.random.set_seed` was given can be asked in no other way",
)


def seed_again(seed: int) -> None:
    """Sets TensorFlow's global seed, and leaves the generator of seeds where it is.

    TensorFlow makes another generator, which gets the state of the one before.
    """
    before = generator_of_seeds()
    tf.random.set_seed(seed)
    after = generator_of_seeds()
    if before is not None and after is not None:
        after.setstate(before.getstate())


@uses(
    "tensorflow.python.eager.context.context.clear_kernel_cache",
    because="`tf.random.set_seed` forgets the kernels, but seeds anew as well",
)
def forget_kernels() -> None:
    """Makes TensorFlow create the kernels of operations anew, as `tf.random.set_seed` does.

    A kernel continues its sequence if an operation is called again with the same seed.
    """
    _context().clear_kernel_cache()


@uses(
    "tensorflow.python.ops.stateful_random_ops.global_generator",
    because="`tf.random.get_global_generator` would make the generator if there is none",
)
def existing_global_generator() -> tf.random.Generator | None:
    """Returns TensorFlow's global `tf.random.Generator`; None if the program has not used it."""
    return _stateful_random.global_generator
