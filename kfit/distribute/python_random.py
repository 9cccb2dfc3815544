"""Draws that leave the state of Python's random number generator as it is.

Keras draws the seeds of initial weights from this generator. If kfit's draws changed its state, a
model that is built later would get other weights than Keras alone would give it. Other threads may
draw from it at any time, such as those that read the data. So its state is only read.
"""

from __future__ import annotations

import random

import keras

from kfit.internals.randomness import existing_seed_generator, set_seed_generator


def apart() -> random.Random:
    """Returns a new generator, whose draws follow from the state of Python's generator `random`.

    If the program has seeded `random`, they are the same in every run, too. They are the same in
    each call until the program draws from `random` or seeds it.
    """
    present = random.Random()
    present.setstate(random.getstate())
    return random.Random(present.getrandbits(64))


def seed_of_keras() -> int:
    """Returns a seed such as Keras draws for a generator that gets none, but drawn `apart`."""
    return apart().randint(1, 10**9)


def seed_generator_apart() -> keras.random.SeedGenerator:
    """Returns Keras' global seed generator; if there is none yet, it is made with a seed `apart`.

    Keras itself would make it with a seed that it draws from Python's generator.
    """
    generator = existing_seed_generator()
    if generator is None:
        generator = keras.random.SeedGenerator(seed_of_keras())
        set_seed_generator(generator)
    return generator
