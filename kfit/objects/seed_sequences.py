"""Reads and restores NumPy's seed sequences, which count the generators spawned from them.

`Generator.spawn` draws nothing from the generator: it asks the sequence of the generator's seed for
another child. So this sequence is a part of the generator's state.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_PARTS = ("entropy", "spawn_key", "n_children_spawned")


def sequence_of(value: np.random.BitGenerator) -> np.random.SeedSequence | None:
    """Returns the sequence that a generator was seeded by; None if it is not one of NumPy's own."""
    sequence = value.seed_seq
    return sequence if type(sequence) is np.random.SeedSequence else None


def read_sequence(value: np.random.SeedSequence) -> dict[str, Any]:
    """Returns the seed of a sequence, and how many children were spawned from it."""
    return {name: getattr(value, name) for name in _PARTS}


def give_sequence(value: np.random.SeedSequence, state: dict[str, Any]) -> None:
    """Sets a sequence, in place, to a state that `read_sequence` returned.

    Raises:
        ValueError: If it cannot be its state.
        TypeError: The same.
    """
    made: Any = _made(state, value.pool_size)
    into: Any = value
    into.__setstate__(made.__reduce__()[2])  # as `pickle` does: it cannot count down otherwise


def check_sequence(state: Any) -> None:
    """Checks that a sequence can get a state.

    Raises:
        ValueError: If it cannot.
        TypeError: The same.
    """
    _made(state)


def _made(state: dict[str, Any], pool_size: int = 4) -> np.random.SeedSequence:
    if not isinstance(state, dict) or set(state) != set(_PARTS) or state["entropy"] is None:
        raise ValueError("it cannot be the state of a seed sequence")
    try:
        return np.random.SeedSequence(**state, pool_size=pool_size)
    except OverflowError as error:
        raise ValueError(f"it cannot be the state of a seed sequence: {error}") from error
