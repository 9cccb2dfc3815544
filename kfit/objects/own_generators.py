"""Reads and restores the states of random generators, variables and iterators of an object."""

from __future__ import annotations

import random
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kfit.internals.variables import tf_variable
from kfit.objects.iterators import advance, position_of
from kfit.objects.seed_sequences import check_sequence, give_sequence, read_sequence, sequence_of
from kfit.objects.values import decode, encode

_SEED = "seed_seq"
"""The key of a generator's seed sequence in its state. Snapshots of earlier versions have none."""


def holds_state(value: Any) -> bool:
    """Returns whether a value has a state that can be read, and restored in place.

    These values are random generators, NumPy's seed sequences, variables of TensorFlow and Keras,
    and those iterators that tell their position.
    """
    if isinstance(value, random.SystemRandom):
        return False
    kinds = (
        random.Random,
        np.random.Generator,
        np.random.RandomState,
        np.random.BitGenerator,
        np.random.SeedSequence,
        tf.Variable,
        tf.random.Generator,
        keras.Variable,
        keras.random.SeedGenerator,
    )
    return isinstance(value, kinds) or _is_torch(value) or position_of(value) is not None


def is_generator(value: Any) -> bool:
    """Returns whether a value is a random generator, or a seed sequence that makes some."""
    others = (tf.Variable, keras.Variable)
    return holds_state(value) and not isinstance(value, others) and position_of(value) is None


def variable_in(value: Any) -> Any:
    """Returns the `tf.Variable` inside a Keras variable, or that with the state of a generator.

    Any other value is returned as it is.
    """
    if isinstance(value, (tf.random.Generator, keras.random.SeedGenerator)):
        value = value.state
    return tf_variable(value) if isinstance(value, keras.Variable) else value


def read(value: Any) -> Any:
    """Returns the state of a value (see `holds_state`), as a tree of JSON values and arrays."""
    position = position_of(value)
    if position is not None:
        return encode(position)
    if isinstance(value, random.Random):
        return encode(value.getstate())
    if isinstance(value, np.random.Generator):
        return read(value.bit_generator)
    if isinstance(value, np.random.BitGenerator):
        sequence = sequence_of(value)
        spawns = {} if sequence is None else {_SEED: read_sequence(sequence)}
        return encode({**value.state, **spawns})
    if isinstance(value, np.random.SeedSequence):
        return encode(read_sequence(value))
    if isinstance(value, np.random.RandomState):
        return encode(value.get_state(legacy=False))
    if isinstance(value, (tf.random.Generator, keras.random.SeedGenerator)):
        value = value.state
    if isinstance(value, (tf.Variable, keras.Variable)):
        return encode(np.array(value.numpy()))
    return encode(np.array(value.get_state().numpy()))


def nbytes_of(value: Any) -> int:
    """Estimates the bytes of the state of a value (see `holds_state`) without reading it."""
    if not isinstance(value, (tf.Variable, keras.Variable)):
        return 1 << 10
    return int(np.prod([size or 0 for size in value.shape], dtype="int64")) * 8


def give(value: Any, tree: Any) -> None:
    """Sets a random generator, variable or iterator to a state that `read` returned.

    Raises:
        ValueError: If it cannot be its state.
        TypeError: The same.
    """
    state = decode(tree)
    check_state(state)
    if isinstance(value, random.Random):
        value.setstate(state)
    elif isinstance(value, np.random.Generator):
        give(value.bit_generator, tree)
    elif isinstance(value, np.random.BitGenerator):
        value.state = state
        sequence = sequence_of(value)
        if sequence is not None and _SEED in state:
            give_sequence(sequence, state[_SEED])
    elif isinstance(value, np.random.SeedSequence):
        give_sequence(value, state)
    elif isinstance(value, np.random.RandomState):
        value.set_state(state)
    elif position_of(value) is not None:
        advance(value, state)
    elif isinstance(value, (tf.random.Generator, keras.random.SeedGenerator)):
        value.state.assign(state)
    elif isinstance(value, (tf.Variable, keras.Variable)):
        value.assign(state)
    else:
        value.set_state(sys.modules["torch"].from_numpy(state))


def check_state(state: Any) -> None:
    """Checks that a generator of NumPy can get a state: it crashes on positions that are none.

    Args:
        state: A decoded state of a generator or variable. Only seed sequences and the states of a
            Mersenne Twister, which are dicts, are looked at.

    Raises:
        ValueError: If it cannot.
        TypeError: The same.
    """
    if not isinstance(state, dict):
        return
    if "entropy" in state or _SEED in state:
        check_sequence(state.get(_SEED, state))
    if state.get("bit_generator") == "MT19937":
        inner = state["state"]
        key, position = np.asarray(inner["key"]), inner["pos"]
        if key.shape != (624,) or key.dtype.kind not in "iu" or not 0 <= int(position) <= 624:
            raise ValueError("it cannot be the state of a Mersenne Twister")
        if not (key[0] >= 1 << 31 or key[1:].any()):
            raise ValueError("it is a state from which only 0 can be drawn")


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, "Generator", ()))
