"""Private state of TensorFlow's runtime in this process."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import tensorflow as tf
from tensorflow.core.protobuf.config_pb2 import ConfigProto

from kfit.internals.private import imported, uses

_context: Any = imported(
    "tensorflow.python.eager.context", because="no public module tells of the runtime"
)

# TensorFlow keeps seeds modulo this number.
_SEEDS = 2**31 - 1
# Seeds of the first so many operations without a seed are recognized.
_DERIVED = 1 << 16

_drawn: int | None = None


@uses("tensorflow.python.eager.context.context._context_handle", because="nothing public tells it")
def tensorflow_has_run() -> bool:
    """Whether TensorFlow has run an operation in this process."""
    return getattr(_context.context(), "_context_handle", None) is not None


def has_global_seed() -> bool:
    """Whether `tf.random.set_seed` has been called."""
    return _context.global_seed() is not None


@uses("tensorflow.python.eager.context.context._rng", because="a seed may be set to what it was")
def seeding() -> object:
    """An object that is another one after each call of `tf.random.set_seed`."""
    return getattr(_context.context(), "_rng", None)


def draw_global_seed(seed: int) -> None:
    """Sets `seed` as the global seed, and records that kfit and not the user chose it."""
    global _drawn
    tf.random.set_seed(seed)
    _drawn = seed


def drawn_seed() -> int | None:
    """The global seed, modulo the largest seed of operations, if kfit chose it; otherwise None."""
    return None if _drawn is None or _context.global_seed() != _drawn else _drawn % _SEEDS


def is_derived(seed: int) -> bool:
    """Whether TensorFlow derived this operation's seed from a global seed that kfit chose."""
    drawn = drawn_seed()
    return drawn is not None and _drawn is not None and seed in _derived(_drawn)


@lru_cache(maxsize=1)
def _derived(seed: int) -> frozenset[int]:
    """The seeds that TensorFlow derives from the global seed for operations without a seed."""
    generator = random.Random(seed)
    return frozenset(generator.randint(0, _SEEDS) % _SEEDS for _ in range(_DERIVED))


def runtime() -> Any:
    """The runtime's context. Traced graphs belong to it; Keras' own tests replace it."""
    return _context.context()


def abort_collectives(reason: str) -> None:
    """Aborts TensorFlow's collectives that this process waits for, and all later ones.

    Args:
        reason: The message of the errors that they raise.
    """
    if tensorflow_has_run():
        _context.context().abort_collective_ops(tf.errors.ABORTED, reason)


_changed_options: dict[tuple[Callable[[ConfigProto], None], str], Any] = {}
"""Call options, by the function that changed them and their serialized original."""


@contextmanager
def with_call_options(change: Callable[[ConfigProto], None]) -> Iterator[None]:
    """Context in which this thread calls graphs with changed options.

    Args:
        change: Changes a copy of the program's options in place.
    """
    runtime = _context.context()
    before = runtime.function_call_options
    key = change, before.config_proto_serialized
    if key not in _changed_options:
        config = ConfigProto.FromString(before.config_proto_serialized)
        change(config)
        _changed_options[key] = _context.FunctionCallOptions(before.executor_type, config)
    runtime.function_call_options = _changed_options[key]
    try:
        yield
    finally:
        runtime.function_call_options = before
