"""What a program decorates with `tf.function` does in a step what it would do without it.

TensorFlow traces such a function once and takes what it traced again: in the next graph, on another
replica, or after Keras has called the layer to learn its shapes, where nothing that it assigns is
kept. What was traced there knows nothing of this step, its replica and the size of its batch. And
replicas cannot meet inside of a function. So it is traced anew in each step: on several replicas as
a part of the step's own graph; where XLA compiles it, it has an input signature, or the replica is
the only one, as a function of this step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.exactness.replica_context import current_replica
from kfit.internals import patch_points as points
from kfit.internals.functions import (
    is_compiled_by_xla,
    new_function_like,
    python_code_of,
)
from kfit.internals.patching import patched

_tracing = threading.local()


@contextmanager
def functions_of_step() -> Iterator[None]:
    """Within it functions that this thread calls in a graph are traced for this step alone."""
    before = getattr(_tracing, "copies", None)
    _tracing.copies = {}
    try:
        with patched(points.CALL_FUNCTION, of_step):
            yield
    finally:
        _tracing.copies = before


def of_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """`tf.function(...).__call__`, in a step."""

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        replica = current_replica()
        copies = getattr(_tracing, "copies", None) if replica is None else replica.functions
        if copies is None or (replica is None and tf.executing_eagerly()):
            return original(self, *args, **kwargs)
        if replica is None or is_compiled_by_xla(self) or self.input_signature is not None:
            if id(self) not in copies:
                copies[id(self)] = self, new_function_like(self)
            return original(copies[id(self)][1], *args, **kwargs)
        fn = python_code_of(self)
        arguments = tf.nest.map_structure(_array_as_tensor, (args, kwargs))
        return tf.nest.map_structure(_as_tensor, fn(*arguments[0], **arguments[1]))

    return call


def _array_as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _as_tensor(value: Any) -> Any:
    """What a function returns: numbers and arrays of Python become tensors."""
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    return tf.convert_to_tensor(value) if isinstance(value, numbers) else value
