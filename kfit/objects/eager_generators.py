"""The random generators of TensorFlow and Keras that functions called outside of a graph use."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_WORDS = 625
"""Words of a Mersenne Twister's state in Python's format; the last one is the position."""
_LARGEST = 3
"""The most numbers of 64 bits in the state of a `tf.random.Generator`."""
_PARTS = (1, _WORDS, 2, 3, 2 * _LARGEST, 1, 4)
"""The lengths of the parts of `EagerGenerators.row`: whether there is a generator of seeds, its
words, whether a normal number is left over and this number; whether there is a `tf.random`
generator, its algorithm and the length of its state, the halves of these numbers; whether there is
a seed generator of Keras, the halves of its two numbers."""
ROW = sum(_PARTS)
"""The length of the array that `EagerGenerators.row` returns."""


@dataclass(frozen=True)
class EagerGenerators:
    """The states of TensorFlow's and Keras' global generators at one moment.

    Two of these are equal if the generators of seeds are. The others are variables, which a step of
    the model may change at any time, so a comparison would not tell who has drawn from them.

    Attributes:
        seeds: The state of the generator from which operations such as `tf.random.normal` draw
            their seeds; None if the program has not called `tf.random.set_seed`.
        tensorflow: The algorithm and the state of `tf.random.get_global_generator()`; None if the
            program has not used it.
        keras: The state of Keras' global seed generator; None if nothing has drawn from it. Keras
            has one in each thread; this is that of the main thread, and None in another one.
    """

    seeds: tuple[Any, ...] | None = None
    tensorflow: tuple[int, tuple[int, ...]] | None = field(default=None, compare=False)
    keras: tuple[int, ...] | None = field(default=None, compare=False)

    @classmethod
    def now(cls) -> EagerGenerators:
        """Reads the current states; those of variables only outside of a graph."""
        tf: Any = sys.modules.get("tensorflow")
        if tf is None:
            return cls()
        from kfit.internals.eager_random import existing_global_generator, generator_of_seeds
        from kfit.internals.randomness import existing_seed_generator

        seeds = generator_of_seeds()
        drawn = None if seeds is None else seeds.getstate()
        if not tf.executing_eagerly():
            return cls(drawn)
        of_tf = existing_global_generator()
        is_main = threading.current_thread() is threading.main_thread()
        of_keras = existing_seed_generator() if is_main else None
        return cls(
            drawn,
            None if of_tf is None else (int(of_tf.algorithm), _numbers(of_tf.state)),
            None if of_keras is None else _numbers(of_keras.state),
        )

    def give(self) -> None:
        """Sets the generators to these states, except for those that were None."""
        tf: Any = sys.modules.get("tensorflow")
        if tf is None:
            return
        from kfit.internals.eager_random import (
            existing_global_generator,
            forget_kernels,
            generator_of_seeds,
        )
        from kfit.internals.randomness import existing_seed_generator

        seeds, of_keras = generator_of_seeds(), existing_seed_generator()
        if seeds is not None and self.seeds not in (None, seeds.getstate()):
            seeds.setstate(self.seeds)
            forget_kernels()  # those of seeds that will be drawn again
        if self.keras is not None and of_keras is not None and tf.executing_eagerly():
            of_keras.state.assign(np.asarray(self.keras, "int64"))
        if self.tensorflow is not None and tf.executing_eagerly():
            algorithm, numbers = self.tensorflow
            of_tf = existing_global_generator()
            if of_tf is not None and of_tf.algorithm == algorithm:
                of_tf.state.assign(numbers)
            else:
                made = tf.random.Generator.from_state(np.asarray(numbers, "int64"), algorithm)
                tf.random.set_global_generator(made)

    def row(self) -> np.ndarray:
        """Returns the states as one array, to send to other tasks.

        Returns:
            A float64 array with `ROW` items.
        """
        row = np.zeros(ROW)
        has_seeds, words, normal, of_tf, halves, has_keras, of_keras = _split(row)
        if self.seeds is not None:
            _, words[:], gauss = self.seeds
            has_seeds[:], normal[:] = 1, (gauss is not None, gauss or 0.0)
        if self.tensorflow is not None:
            algorithm, numbers = self.tensorflow
            of_tf[:] = 1, algorithm, len(numbers)
            halves[: 2 * len(numbers)] = _halves(numbers)
        if self.keras is not None:
            has_keras[:], of_keras[:] = 1, _halves(self.keras)
        return row

    @classmethod
    def of_row(cls, row: np.ndarray) -> EagerGenerators:
        """Creates the object from an array that `row` returned, perhaps on another task.

        Raises:
            ValueError: If the array cannot be the states of generators.
        """
        check_eager_rows(np.asarray(row)[None], "row")
        has_seeds, words, normal, of_tf, halves, has_keras, of_keras = _split(np.asarray(row))
        (has_gauss, gauss), (has_tf, algorithm, length) = normal, of_tf
        seeds = (3, tuple(map(int, words)), float(gauss) if has_gauss else None)
        numbers = _whole(halves[: 2 * int(length)])
        return cls(
            seeds if has_seeds[0] else None,
            (int(algorithm), numbers) if has_tf else None,
            _whole(of_keras) if has_keras[0] else None,
        )


NONE = EagerGenerators()
"""The states where no generator is there, or none is to be set."""


def require_table(rows: Any, columns: int, place: str) -> None:
    """Checks that an array has a row of so many float64 numbers for each task.

    Raises:
        ValueError: If it has not.
    """
    if not isinstance(rows, np.ndarray) or rows.dtype != np.float64:
        raise ValueError(f"{place} must be an array of float64")
    if rows.ndim != 2 or rows.shape[1] != columns or not len(rows):
        raise ValueError(f"{place} has the shape {rows.shape}; expected a row for each task")


def check_eager_rows(rows: Any, place: str) -> None:
    """Checks that arrays can be states of generators, before these get them.

    Args:
        rows: An array with a row for each task, each as `EagerGenerators.row` returns it.
        place: What to call the array in the error message.

    Raises:
        ValueError: If they cannot.
    """
    require_table(rows, ROW, place)
    for row in rows:
        has_seeds, words, normal, of_tf, halves, has_keras, of_keras = _split(row)
        whole = np.concatenate([words, halves, of_keras])
        flags = np.concatenate([has_seeds, normal[:1], of_tf[:1], has_keras])
        if not (
            np.all((whole >= 0) & (whole < 1 << 32) & (whole == np.floor(whole)))
            and np.isin(flags, (0, 1)).all()
            and words[-1] in range(_WORDS)
            and (not has_seeds[0] or words[0] >= 1 << 31 or words[1:-1].any())
            and (not of_tf[0] or (of_tf[1] in (1, 2) and of_tf[2] in (2, 3)))
            and (of_tf[0] or not of_tf[2])
        ):
            raise ValueError(f"{place} cannot be the states of random generators")


def _split(row: np.ndarray) -> list[np.ndarray]:
    return np.split(row, np.cumsum(_PARTS)[:-1])


def _numbers(variable: Any) -> tuple[int, ...]:
    return tuple(int(number) for number in np.asarray(variable.numpy()).ravel())


def _halves(numbers: tuple[int, ...]) -> list[int]:
    """Splits integers of 64 bits into halves that a float64 holds exactly."""
    return [half for n in numbers for half in ((n >> 32) & 0xFFFFFFFF, n & 0xFFFFFFFF)]


def _whole(halves: np.ndarray) -> tuple[int, ...]:
    words = np.asarray(halves).astype("uint64")
    return tuple(((words[::2] << np.uint64(32)) | words[1::2]).view("int64").tolist())
