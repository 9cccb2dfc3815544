"""Functions that read and change private state of TensorFlow's runtime in this process."""

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

_determinism_is_enabled: Any = imported(
    "tensorflow.python.framework.config.is_op_determinism_enabled",
    because="`tf.config.experimental.enable_op_determinism` can be asked for in no public way",
)

# TensorFlow keeps seeds modulo this number.
_SEEDS = 2**31 - 1
# `is_derived` recognizes the seeds of this many operations without a seed.
_DERIVED = 1 << 16

_drawn: int | None = None


@uses("tensorflow.python.eager.context.context._context_handle", because="nothing public tells it")
def tensorflow_has_run() -> bool:
    """Returns whether TensorFlow has run an operation in this process.

    After the first operation, the process cannot be connected to other tasks any more.
    """
    return getattr(_context.context(), "_context_handle", None) is not None


def ops_are_deterministic() -> bool:
    """Returns whether `tf.config.experimental.enable_op_determinism` was called.

    Operations that cannot compute the same values each time then raise an error, such as those
    that read the clock.
    """
    return bool(_determinism_is_enabled())


def has_global_seed() -> bool:
    """Returns whether `tf.random.set_seed` has been called."""
    return _context.global_seed() is not None


def draw_global_seed(seed: int) -> None:
    """Sets TensorFlow's global seed, and records that kfit and not the user has chosen it."""
    global _drawn
    tf.random.set_seed(seed)
    _drawn = seed


def drawn_seed() -> int | None:
    """Returns TensorFlow's global seed if kfit has chosen it; otherwise None.

    The seed is returned modulo 2**31 - 1, so that it can be compared with the seeds that TensorFlow
    stores in operations, which are taken modulo this number.
    """
    return None if _drawn is None or _context.global_seed() != _drawn else _drawn % _SEEDS


def is_derived(seed: int) -> bool:
    """Returns whether an operation's seed comes from a global seed that kfit has chosen.

    TensorFlow derives a seed for each operation without one from the global seed. The first 65536
    of these seeds are recognized.

    Args:
        seed: The seed of the operation.
    """
    drawn = drawn_seed()
    return drawn is not None and _drawn is not None and seed in _derived(_drawn)


@lru_cache(maxsize=1)
def _derived(seed: int) -> frozenset[int]:
    """Returns the seeds that TensorFlow derives from a global seed for operations without a seed.

    Args:
        seed: The global seed.
    """
    generator = random.Random(seed)
    return frozenset(generator.randint(0, _SEEDS) % _SEEDS for _ in range(_DERIVED))


def runtime() -> Any:
    """Returns the context of TensorFlow's runtime, to which traced graphs belong.

    After a reset of the runtime, as in Keras' own tests, the context is another object. Graphs that
    were traced before the reset are not valid any more.
    """
    return _context.context()


def abort_collectives(reason: str) -> None:
    """Aborts TensorFlow's collectives that this process waits for, and all later ones.

    Args:
        reason: The message of the errors that the aborted collectives raise.
    """
    if tensorflow_has_run():
        _context.context().abort_collective_ops(tf.errors.ABORTED, reason)


_changed_options: dict[tuple[Callable[[ConfigProto], None], str], Any] = {}
"""Changed options of graph calls, by the function that changed them and the serialized original."""


@contextmanager
def with_call_options(change: Callable[[ConfigProto], None]) -> Iterator[None]:
    """Context in which this thread calls graphs with changed options of TensorFlow.

    Args:
        change: Called with a copy of the current options, which it changes in place. The changed
            options are cached, so `change` must always make the same change.
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
