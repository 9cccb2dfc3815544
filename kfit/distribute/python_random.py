"""Protects the state of Python's random number generator.

Keras draws the seeds of initial weights from this generator.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Context that restores the state of Python's `random` at its end.

    Within the block `random` is seeded from its previous state, so what is drawn there is
    reproducible. If kfit's own draws changed the state, a model built later would get other initial
    weights than Keras gives it under the same seed.
    """
    state = random.getstate()
    random.seed(random.getrandbits(64))
    try:
        yield
    finally:
        random.setstate(state)
