"""Functions that inspect or copy a `tf.function`, by its private attributes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from kfit.internals.private import imported, uses

FUNCTION: Any = type(tf.function(lambda: None))
"""The class of the objects that `tf.function` returns."""

_called_with_autograph: Any = imported(
    "tensorflow.python.autograph.impl.api.call_with_unspecified_conversion_status",
    because="no public call leaves to AutoGraph what it converts, as `tf.function` does",
)

_converted: Any = imported(
    "tensorflow.python.eager.polymorphic_function.autograph_util.py_func_from_autograph",
    because="`tf.autograph.to_graph` does not convert as `tf.function` does",
)


@uses("tf.function._jit_compile", because="a function does not tell whether XLA compiles it")
def is_compiled_by_xla(function: Any) -> bool:
    """Returns whether XLA compiles a `tf.function`."""
    return bool(function._jit_compile)


@uses("tf.function._clone", because="nothing public makes another function of the same options")
def new_function_like(function: Any, code: Callable[..., Any] | None = None) -> Any:
    """Returns a new `tf.function` with the options of another one, without any traces.

    Args:
        function: The other `tf.function`.
        code: The Python function to trace. None takes that of `function`.
    """
    return function._clone(code)


@uses(
    "tf.function._autograph",
    "tf.function._experimental_autograph_options",
    because="a function does not tell its options",
)
def python_code_of(function: Any) -> Callable[..., Any]:
    """Returns the Python function that TensorFlow calls to trace a `tf.function`.

    This is the user's function after its conversion by AutoGraph; or, if the `tf.function` was made
    with `autograph=False`, the user's function itself. kfit calls it to run the code of the
    `tf.function` within the graph that is being traced.
    """
    fn: Callable[..., Any] = function.python_function
    if function._autograph:
        converted = _converted(fn, function._experimental_autograph_options)
        fn = _called_with_autograph(converted)
    return fn
