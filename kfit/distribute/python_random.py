"""Python's random numbers, which Keras draws the seeds of initial weights from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def undisturbed() -> Iterator[None]:
    """Within it Python draws from a stream that follows from its state, which then is as before.

    What kfit draws before a model is built would otherwise give the model other initial weights
    than Keras gives it under the same seed.
    """
    state = random.getstate()
    random.seed(random.getrandbits(64))
    try:
        yield
    finally:
        random.setstate(state)
