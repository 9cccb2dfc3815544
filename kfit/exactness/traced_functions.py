"""Makes `tf.function`s that a model calls behave in a step as if they were not decorated.

TensorFlow traces a `tf.function` once and then reuses the trace. But the trace may have been made
for another step, for another replica or batch size, or while Keras inferred the layer's shapes
(Keras discards assignments then). Such a trace would be wrong in the current step. Besides,
replicas cannot communicate inside a `tf.function`. So here each function is traced again in each
step:

- On several replicas the function's Python code is called directly, and becomes a part of the
  step's graph.
- If there is only one replica, if XLA compiles the function, or if the function has an input
  signature, the step calls a new copy of the function.
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
    """Context for tracing a step on a single replica, in which no old trace of a function is used.

    A `tf.function` that the step calls may have a trace from another step, which would be wrong in
    this one. So in the context, a call of a `tf.function` by this thread, while it traces a graph,
    calls a new copy of the function, without traces. (On several replicas,
    `kfit.exactness.patches.keras_for_replicas` is used instead.)
    """
    before = getattr(_tracing, "copies", None)
    _tracing.copies = {}
    try:
        with patched(points.CALL_FUNCTION, of_step):
            yield
    finally:
        _tracing.copies = before


def of_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a replacement of `__call__` of `tf.function`s that never uses an old trace in a step.

    On several replicas the replacement calls the function's Python code, which becomes a part of
    the step's graph. With one replica, or if XLA compiles the function or it has an input
    signature, the replacement calls a copy of the function that is new in each step.
    """

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
    """Converts a result of a function to a tensor if it is a number or an array.

    A `tf.function` does so, too. Any other value, such as a tensor, is returned unchanged.
    """
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    return tf.convert_to_tensor(value) if isinstance(value, numbers) else value
