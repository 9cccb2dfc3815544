"""What TensorFlow's runtime in this process is like."""

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

# TensorFlow keeps seeds below it.
_SEEDS = 2**31 - 1
# Of so many unseeded operations the seeds are known again.
_DERIVED = 1 << 16

_drawn: int | None = None


@uses("tensorflow.python.eager.context.context._context_handle", because="nothing public tells it")
def tensorflow_has_run() -> bool:
    """Whether TensorFlow ran an operation in this process."""
    return getattr(_context.context(), "_context_handle", None) is not None


def has_global_seed() -> bool:
    """Whether somebody has called `tf.random.set_seed`."""
    return _context.global_seed() is not None


def draw_global_seed(seed: int) -> None:
    """Sets a global seed that no user has asked for, and remembers that it was kfit."""
    global _drawn
    tf.random.set_seed(seed)
    _drawn = seed


def drawn_seed() -> int | None:
    """The global seed as operations keep it, if kfit chose it; None if the user did, or nobody."""
    return None if _drawn is None or _context.global_seed() != _drawn else _drawn % _SEEDS


def is_derived(seed: int) -> bool:
    """Whether an operation has this seed from the global one that kfit chose, not from the user."""
    drawn = drawn_seed()
    return drawn is not None and _drawn is not None and seed in _derived(_drawn)


@lru_cache(maxsize=1)
def _derived(seed: int) -> frozenset[int]:
    """The seeds that TensorFlow gives to operations without one, by its own generator."""
    generator = random.Random(seed)
    return frozenset(generator.randint(0, _SEEDS) % _SEEDS for _ in range(_DERIVED))


def runtime() -> Any:
    """The runtime, with which all graphs that were traced are gone; Keras' own tests renew it."""
    return _context.context()


def abort_collectives(reason: str) -> None:
    """Ends the collectives of TensorFlow that this process waits for, and all later ones.

    Args:
        reason: What their errors say.
    """
    if tensorflow_has_run():
        _context.context().abort_collective_ops(tf.errors.ABORTED, reason)


_changed_options: dict[tuple[Callable[[ConfigProto], None], str], Any] = {}
"""Options of calls, by what has changed them and what they were."""


@contextmanager
def with_call_options(change: Callable[[ConfigProto], None]) -> Iterator[None]:
    """Within it this thread calls graphs with other options than those of the whole program.

    Args:
        change: Changes the options, which are the program's in all other respects.
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
