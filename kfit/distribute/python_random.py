"""Draws that leave the state of Python's random number generator as it is.

Keras draws the seeds of initial weights from this generator. If kfit's draws changed its state, a
model that is built later would get other weights than Keras alone would give it. Other threads may
draw from it at any time, such as those that read the data. So its state is only read.
"""

from __future__ import annotations

import random

import keras

from kfit.internals.randomness import existing_seed_generator, set_seed_generator

_SEEDS = 1, 10**9
"""The least and the greatest seed that Keras draws."""


def apart() -> random.Random:
    """Returns a new generator, whose draws follow from the state of Python's generator `random`.

    If the program has seeded `random`, they are the same in every run, too. They are the same in
    each call until the program draws from `random` or seeds it.
    """
    present = random.Random()
    present.setstate(random.getstate())
    return random.Random(present.getrandbits(64))


def seed_of_keras() -> int:
    """Returns the seed that Keras would draw now for a generator that gets none."""
    present = random.Random()
    present.setstate(random.getstate())
    return present.randint(*_SEEDS)


def draw_seed_of_keras() -> int:
    """Draws a seed for a generator that gets none, from Python's generator, as Keras does."""
    return random.randint(*_SEEDS)


def seed_generator_apart() -> keras.random.SeedGenerator:
    """Returns Keras' global seed generator; if there is none yet, one is made.

    It has the seed that Keras would draw now, but nothing is drawn.
    """
    generator = existing_seed_generator()
    if generator is None:
        generator = keras.random.SeedGenerator(seed_of_keras())
        set_seed_generator(generator)
    return generator
