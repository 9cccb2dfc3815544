"""Keras' global seed generator during a call of `fit`, `evaluate` or `predict` on a strategy.

Layers without a seed of their own draw from this generator. Keras creates the generator when
something first draws from it, but cannot do so while the step of a replica is traced.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from kfit.distribute.python_random import draw_seed_of_keras, seed_of_keras
from kfit.internals import patch_points as points
from kfit.internals.patching import patched
from kfit.internals.randomness import existing_seed_generator, set_seed_generator

_undrawn: weakref.WeakKeyDictionary[keras.random.SeedGenerator, int] = weakref.WeakKeyDictionary()
"""The generators that kfit has made, and nothing has drawn from yet, with their seeds."""


class GlobalSeed:
    """Keras' global seed generators that the calls of a trainer have used, for one model.

    Args:
        is_placed: A function that returns whether a variable is on the strategy's devices.
        is_alone: Whether this task trains alone. Otherwise all tasks have the chief's state.

    Attributes:
        generator: The generator of the latest call; None before the first call.
        states: The variables of all these generators, which move to the devices with the model.
            They are kept for good, since graphs continue to draw from them.
    """

    def __init__(self, is_placed: Callable[[keras.Variable], bool], *, is_alone: bool) -> None:
        self._is_placed = is_placed
        self._is_alone = is_alone
        self.generator: keras.random.SeedGenerator | None = None
        self.states: list[keras.Variable] = []
        self._latest_undrawn: keras.random.SeedGenerator | None = None

    @contextmanager
    def made(self) -> Iterator[None]:
        """Context of a call, in which the generator exists.

        kfit creates the generator at the start of the context. If nothing has drawn from it by the
        end, kfit takes it away again: then Keras creates a generator at the same draw as without
        kfit.
        """
        is_missing = existing_seed_generator() is None
        if is_missing:
            seed, generator = seed_of_keras(), self._latest_undrawn
            if generator is None:
                generator = keras.random.SeedGenerator(seed)
            else:  # so that graphs can be used again
                generator.state.assign([seed, 0])
            _undrawn[generator] = seed
            set_seed_generator(generator)
        self.generator = generator = existing_seed_generator()
        assert generator is not None
        state = generator.state
        if not self._is_placed(state) and all(state is not known for known in self.states):
            self.states.append(state)
        try:
            with patched(points.GLOBAL_SEED_GENERATOR, self._noticing_draws):
                yield
        finally:
            if is_missing:
                self._latest_undrawn = generator if generator in _undrawn else None
                if generator in _undrawn and existing_seed_generator() is generator:
                    set_seed_generator(None)

    def used(self) -> keras.random.SeedGenerator:
        """Returns the generator of the present call to a step that is about to draw from it."""
        assert self.generator is not None
        if _undrawn.pop(self.generator, None) is not None:
            draw_seed_of_keras()
        return self.generator

    def _noticing_draws(self, original: Callable[[], Any]) -> Callable[[], Any]:
        """Returns a replacement of Keras' function that returns the generator, outside of steps.

        Keras makes the generator at the first draw, and then draws its seed from Python's
        generator. So this is done now, for what the program draws from Python's generator next.
        """

        def global_seed_generator() -> Any:
            generator = existing_seed_generator()
            before = None if generator is None else _undrawn.pop(generator, None)
            if generator is not None and before is not None:
                seed = draw_seed_of_keras()
                # The program may have drawn from Python's generator since the call began.
                if seed != before and self._is_alone:
                    with tf.init_scope():
                        generator.state.assign([seed, 0])
            return original()

        return global_seed_generator

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
