"""Protects the state of Python's random number generator.

Keras draws the seeds of initial weights from this generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context that restores the state of Python's generator `random` at its end.

    kfit's own draws run in this context. Keras draws the seeds of initial weights from `random`: if
    kfit's draws changed the state, a model that is built later would get other weights than Keras
    alone would give it. At its start the context seeds `random` from the current state. So if the
    program has seeded `random`, the draws within the context are the same in every run, too.
    """
    state = random.getstate()
    random.seed(random.getrandbits(64))
    try:
        yield
    finally:
        random.setstate(state)


def drawn_apart(bits: int) -> int:
    """Returns a random number without changing the state of Python's generator `random`.

    The number follows from the state, so it is the same in each call until the program draws from
    `random` or seeds it.

    Args:
        bits: The number of random bits: the result is at least 0 and below `2 ** bits`.
    """
    with undisturbed():
        return random.getrandbits(bits)
