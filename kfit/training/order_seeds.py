"""The seeds of the orders in which successive `fit`s of a model shuffle its data."""

from __future__ import annotations

import random
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import keras

from kfit.distribute.host_collectives import HostCollectives
from kfit.distribute.python_random import drawn_apart
from kfit.internals.eager_random import generator_of_seeds

_STRIDE = 0x9E3779B1
"""The difference of the seeds of two successive `fit`s."""
_HALF = 1 << 63


@dataclass
class _Count:
    """How many `fit`s there were since the program has seeded its generators.

    Attributes:
        fits: Their number.
        seeding: The generator that TensorFlow has made when the program called
            `keras.utils.set_random_seed`, another one at each call; None before the first.
    """

    fits: int = 0
    seeding: random.Random | None = None


_counts: WeakKeyDictionary[keras.Model, _Count] = WeakKeyDictionary()
"""The `fit`s of each model, by whichever trainers: a trainer may be made anew for each of them."""


class OrderSeeds:
    """Gives each `fit` of a trainer a seed of its own, the same on all workers.

    If the user has given the trainer a seed, all seeds follow from it. Otherwise they follow from
    the state of Python's `random`, which is not changed, so that the program draws the same numbers
    as with Keras. As with Keras, the orders repeat after `keras.utils.set_random_seed`.

    Args:
        given: The seed that the user has given to the trainer, or None.
        model: The model that is trained.
        host_collectives: Through which the chief sends the number that it has drawn to all tasks.
    """

    def __init__(
        self, given: int | None, model: keras.Model, host_collectives: HostCollectives
    ) -> None:
        self.given = given
        self._host_collectives = host_collectives
        self._count = _Count() if given is not None else _counts.setdefault(model, _Count())
        self._base = given
        self._seeding: random.Random | None = None

    def of_next_fit(self) -> int:
        """Returns the seed for the next `fit`; all tasks must call it equally often."""
        if self.given is None:
            self._follow_the_program()
        assert self._base is not None
        self._count.fits += 1
        seed = self._base + (self._count.fits - 1) * _STRIDE
        return (seed + _HALF) % (2 * _HALF) - _HALF  # of 64 bits, as TensorFlow needs it

    def begin_anew(self) -> None:
        """Gives the next `fit` the seed of the first one, as after a restart of the program."""
        self._count.fits = 0

    def _follow_the_program(self) -> None:
        seeding = generator_of_seeds()
        if self._count.seeding is not seeding:
            self._count.fits, self._count.seeding = 0, seeding
        if self._base is None or self._seeding is not seeding:
            self._base = int(self._host_collectives.all_gather([drawn_apart(31)])[0, 0])
            self._seeding = seeding
