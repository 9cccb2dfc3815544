"""The seeds of the orders in which successive `fit`s of a model shuffle its data."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import keras

from kfit.distribute.host_collectives import HostCollectives
from kfit.distribute.python_random import apart
from kfit.internals.eager_random import generator_of_seeds, global_seed, seed_again
from kfit.internals.randomness import program_seed, set_program_seed

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


@dataclass
class _InFit:
    """What a hook has seeded TensorFlow with, and what the program itself has set before.

    Attributes:
        seeding: The generator that TensorFlow has made when the hook seeded; None if none has.
        own: The seed of the program: what it called `keras.utils.set_random_seed` with outside of
            `fit`.
    """

    seeding: random.Random | None = None
    own: int | None = None


_in_fit = _InFit()


class OrderSeeds:
    """Gives each `fit` of a trainer a seed of its own, the same on all workers.

    If the user has given the trainer a seed, all seeds follow from it. Otherwise they follow from
    the state of Python's `random`, which is not changed, so that the program draws the same numbers
    as with Keras. As with Keras, the orders repeat after `keras.utils.set_random_seed`.

    A hook may seed as well, and so decide the orders of later `fit`s. A process that goes on from a
    snapshot does not call the hook again. So what was seeded is part of the snapshot.

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
        self._at_beginning: random.Random | None = None
        self._of_fit: random.Random | None = None
        self._own: int | None = None

    @property
    def of_program(self) -> int | None:
        """The seed by which the training is known: the trainer's, or what the program has set.

        What a hook has set is another one after a restart, when the hook is not called again.
        """
        return self._own if self.given is None else self.given

    def of_next_fit(self) -> int:
        """Returns the seed for the next `fit`; all tasks must call it equally often."""
        if self.given is None:
            self._follow_the_program()
        seeding = self._at_beginning = self._of_fit = generator_of_seeds()
        is_of_hook = seeding is not None and seeding is _in_fit.seeding
        self._own = _in_fit.own if is_of_hook else program_seed()
        assert self._base is not None
        self._count.fits += 1
        seed = self._base + (self._count.fits - 1) * _STRIDE
        return (seed + _HALF) % (2 * _HALF) - _HALF  # of 64 bits, as TensorFlow needs it

    def end_fit(self) -> None:
        """Records whether a hook has seeded since `of_next_fit`."""
        seeding = generator_of_seeds()
        if seeding is not self._at_beginning:
            _in_fit.seeding, _in_fit.own = seeding, self._own

    def state_dict(self) -> dict[str, Any]:
        """Returns what decides the orders of the `fit`s after this one, for a snapshot."""
        return {
            "program": _number(program_seed()),
            "tensorflow": _number(global_seed()),
            "is_anew": generator_of_seeds() is not self._of_fit,
            "base": self._base,
            "fits": self._count.fits,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Seeds as the hooks of the training had seeded that a snapshot is of.

        The generators keep their states.

        Args:
            state: What `state_dict` returned, here or in another process.
        """
        program = state["program"]
        is_other = program is not None and program != program_seed()
        if (state["is_anew"] or is_other) and state["tensorflow"] is not None:
            seed_again(state["tensorflow"])
        if is_other:
            set_program_seed(program)
        if not state["is_anew"]:
            self._of_fit = generator_of_seeds()
            if self.given is None:
                self._base, self._seeding = state["base"], self._of_fit
                self._count.fits, self._count.seeding = state["fits"], self._of_fit

    def begin_anew(self) -> None:
        """Gives the next `fit` the seed of the first one, as after a restart of the program."""
        self._count.fits = 0

    def _follow_the_program(self) -> None:
        seeding = generator_of_seeds()
        if self._count.seeding is not seeding:
            self._count.fits, self._count.seeding = 0, seeding
        if self._base is None or self._seeding is not seeding:
            self._base = int(self._host_collectives.all_gather([apart().getrandbits(31)])[0, 0])
            self._seeding = seeding


def _number(seed: Any) -> int | None:
    """Returns a seed as a number of 64 bits, as a snapshot can have it; None if it is none."""
    try:
        number = int(seed)
    except (TypeError, ValueError):
        return None
    return number if -_HALF <= number < _HALF else None
