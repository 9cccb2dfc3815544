"""Protects the state of Python's random number generator.

Keras draws the seeds of initial weights from this generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kfit.internals.runtime import seeding

_last: tuple[Any, Any, int] = (None, None, 0)
"""The state from which `drawn_apart` has drawn last, by what it was seeded, and how often."""


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context that restores the state of Python's generator `random` at its end.

    kfit's own draws run in this context. Keras draws the seeds of initial weights from `random`: if
    kfit's draws changed the state, a model that is built later would get other weights than Keras
    alone would give it. Within the context, `random` is seeded from its state, so what is drawn is
    reproducible.
    """
    state = random.getstate()
    random.seed(random.getrandbits(64))
    try:
        yield
    finally:
        random.setstate(state)


def drawn_apart(bits: int) -> int:
    """Returns a random number that follows from the state of `random`, which it does not change.

    Numbers that are drawn one after the other differ. After `keras.utils.set_random_seed`, the same
    numbers follow again.

    Args:
        bits: The number is below `2 ** bits`.
    """
    global _last
    state, seeded = random.getstate(), seeding()
    count = _last[2] + 1 if _last[0] == state and _last[1] is seeded else 0
    _last = state, seeded, count
    with undisturbed():
        random.seed(random.getrandbits(64) + count)
        return random.getrandbits(bits)
