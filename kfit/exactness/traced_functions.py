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
from functools import wraps
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.exactness.batch_kinds import kinds_of
from kfit.exactness.replica_context import Replica, current_replica
from kfit.graphs.kinds import NONE, Kinds
from kfit.graphs.origins import Origins
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
            kinds = () if replica is None else _kinds_of((args, kwargs), replica)
            if (id(self), kinds) not in copies:
                code = None if replica is None else _marking(self, kinds, replica)
                copies[id(self), kinds] = self, new_function_like(self, code)
            return original(copies[id(self), kinds][1], *args, **kwargs)
        fn = python_code_of(self)
        arguments = tf.nest.map_structure(_array_as_tensor, (args, kwargs))
        return tf.nest.map_structure(_as_tensor, fn(*arguments[0], **arguments[1]))

    return call


def _kinds_of(arguments: Any, replica: Replica) -> tuple[Kinds, ...]:
    """Returns how each tensor among the arguments of a function is computed from the examples."""
    return tuple(kinds_of(each, replica) for each in _tensors(arguments))


def _marking(function: Any, kinds: tuple[Kinds, ...], replica: Replica) -> Callable[..., Any]:
    """Returns the Python function of a `tf.function`, but one that marks its arguments.

    The graph of a function does not show what the caller has passed to it. The marks do, so that
    kfit can read in the function what a loss, or an update of a metric, is computed from.

    Args:
        function: The `tf.function`.
        kinds: How each tensor among the arguments is computed from the examples.
        replica: The replica that is being traced.
    """
    code = python_code_of(function)

    @tf.autograph.experimental.do_not_convert
    @wraps(function.python_function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        tensors = _tensors((args, kwargs))
        for tensor, each in zip(tensors, kinds, strict=False):
            mark = _MARKS.get(each) if len(tensors) == len(kinds) else None
            if mark is not None:
                mark(replica.origins, tensor)
        return code(*args, **kwargs)

    return marked


_MARKS: dict[Kinds, Callable[[Origins, Any], Any]] = {
    frozenset({"rows"}): Origins.own,
    frozenset({"mean"}): Origins.estimate,
    NONE: Origins.agreed,
}


def _tensors(arguments: Any) -> list[tf.Tensor]:
    flat = tf.nest.flatten(arguments, expand_composites=True)
    return [each for each in flat if tf.is_tensor(each) or isinstance(each, np.ndarray)]


def _array_as_tensor(value: Any) -> Any:
    return tf.convert_to_tensor(value) if isinstance(value, np.ndarray) else value


def _as_tensor(value: Any) -> Any:
    """Converts a result of a function to a tensor if it is a number or an array.

    A `tf.function` does so, too. Any other value, such as a tensor, is returned unchanged.
    """
    numbers = (bool, int, float, complex, np.ndarray, np.generic)
    return tf.convert_to_tensor(value) if isinstance(value, numbers) else value
