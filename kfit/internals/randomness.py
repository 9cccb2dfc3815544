"""Reads and sets Keras' global seed generator, from which layers without a seed draw."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras

from kfit.internals.private import imported
from kfit.internals.thread_settings import get_of_thread, set_of_thread

SEED_GENERATOR_MODULE: Any = imported(
    "keras.src.random.seed_generator",
    because="`keras.random` asks a function of this module for the generator without a seed",
)

global_seed_generator: Any = imported(
    "keras.src.random.seed_generator.global_seed_generator",
    because="the generator of draws without a seed is made at the first draw, and told by nobody",
)

DRAWING_MODULE: Any = imported(
    "keras.src.backend.tensorflow.random",
    because="what layers and `keras.random` draw comes from the functions of this module",
)

program_seed: Any = imported(
    "keras.src.utils.rng_utils.get_random_seed",
    because="what `keras.utils.set_random_seed` was given can be asked in no other way",
)

_PROGRAM_SEED: Any = imported(
    "keras.src.utils.rng_utils.GLOBAL_RANDOM_SEED",
    because="the name under which Keras keeps what `keras.utils.set_random_seed` was given",
)

_GLOBAL_SEED_GENERATOR: Any = imported(
    "keras.src.random.seed_generator.GLOBAL_SEED_GENERATOR",
    because="the name under which Keras keeps the generator",
)


def set_program_seed(seed: int) -> None:
    """Sets what `program_seed` returns; the generators stay as they are."""
    set_of_thread(_PROGRAM_SEED, seed)


def set_seed_generator(generator: keras.random.SeedGenerator | None) -> None:
    """Sets Keras' global seed generator; with None, Keras makes a new one at the next draw."""
    set_of_thread(_GLOBAL_SEED_GENERATOR, generator)


def existing_seed_generator() -> keras.random.SeedGenerator | None:
    """Returns Keras' global seed generator; None if nothing has drawn from it yet."""
    return get_of_thread(_GLOBAL_SEED_GENERATOR)


@contextmanager
def as_in_another_thread() -> Iterator[None]:
    """A context in which Keras makes a new global seed generator, as in a thread of its own.

    Keras has one such generator in each thread, and seeds it from Python's generator `random`. The
    threads in which TensorFlow draws batches have none when Python code begins to run in them.
    """
    own = existing_seed_generator()
    set_seed_generator(None)
    try:
        yield
    finally:
        set_seed_generator(own)
