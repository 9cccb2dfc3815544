"""Keras' global seed generator during a call of `fit`, `evaluate` or `predict` on a strategy.

Layers without a seed of their own draw from this generator. Keras creates the generator when
something first draws from it, but cannot do so while the step of a replica is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import keras
import numpy as np

from kfit.distribute.python_random import seed_generator_apart, seed_of_keras
from kfit.internals.randomness import existing_seed_generator, set_seed_generator


class GlobalSeed:
    """Keras' global seed generators that the calls of a trainer have used, for one model.

    Args:
        is_placed: A function that returns whether a variable is on the strategy's devices.

    Attributes:
        generator: The generator of the latest call; None before the first call.
        states: The variables of all these generators, which move to the devices with the model.
            They are kept for good, since graphs continue to draw from them.
    """

    def __init__(self, is_placed: Callable[[keras.Variable], bool]) -> None:
        self._is_placed = is_placed
        self.generator: keras.random.SeedGenerator | None = None
        self.states: list[keras.Variable] = []
        self._unused: keras.random.SeedGenerator | None = None

    @contextmanager
    def made(self) -> Iterator[None]:
        """Context of a call, in which the generator exists.

        kfit creates the generator at the start of the context. If nothing has drawn from it by the
        end, kfit takes it away again: then Keras creates a generator at the same draw as without
        kfit.
        """
        is_keras_own = existing_seed_generator() is not None
        if not is_keras_own and self._unused is not None:
            # It gets the seed of a new one: the program may have been seeded meanwhile.
            self._unused.state.assign([seed_of_keras(), 0])
            set_seed_generator(self._unused)
        self.generator = generator = seed_generator_apart()
        state = generator.state
        if not self._is_placed(state) and all(state is not known for known in self.states):
            self.states.append(state)
        first = state.numpy()
        try:
            yield
        finally:
            is_same = existing_seed_generator() is generator
            if not is_keras_own and is_same and np.array_equal(state.numpy(), first):
                self._unused = generator
                set_seed_generator(None)

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Context of a call in another thread than that of the call that has made the generator.

        Keras has one global seed generator per thread. In the context this thread has the one whose
        state is on the strategy's devices.
        """
        own = existing_seed_generator()
        set_seed_generator(self.generator)
        try:
            yield
        finally:
            set_seed_generator(own)
