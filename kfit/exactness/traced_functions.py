"""Makes `tf.function`s that a model calls behave in a step as if they were not decorated.

TensorFlow traces such a function once and reuses the trace: in the next graph, on another replica,
or after Keras has called the layer to infer its shapes, when assignments are discarded. That trace
ignores the current step, its replica and its batch size. And replicas cannot communicate inside a
function. So here each function is traced again in each step. On several replicas its Python code
becomes a part of the step's own graph. If XLA compiles the function, if it has an input signature,
or if there is only one replica, it becomes a new function of this step.
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
    """Context in which `tf.function`s that this thread calls in a graph are traced anew."""
    before = getattr(_tracing, "copies", None)
    _tracing.copies = {}
    try:
        with patched(points.CALL_FUNCTION, of_step):
            yield
    finally:
        _tracing.copies = before


def of_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `__call__` of a `tf.function`: traces it for the current step only."""

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
    """Converts a number or array that a function returns to a tensor, as a `tf.function` does."""
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    return tf.convert_to_tensor(value) if isinstance(value, numbers) else value
