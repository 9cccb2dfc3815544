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
    alone would give it. What is drawn within the context follows from the state before.
    """
    state = random.getstate()
    random.seed(random.getrandbits(64))
    try:
        yield
    finally:
        random.setstate(state)


def drawn_apart(bits: int) -> int:
    """Returns a random number that follows from the state of `random`, which it does not change.

    So the number is the same each time until the program draws from `random` or seeds it.

    Args:
        bits: The number is below `2 ** bits`.
    """
    with undisturbed():
        return random.getrandbits(bits)
