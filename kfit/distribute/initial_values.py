"""Initial values of every type for workers: TensorFlow sends the chief's, but not of all types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from kfit.internals.strategies import without_sending_initial_values

_SENT_AS = {
    tf.bfloat16: tf.float32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
"""What TensorFlow's broadcast does not take, as in quantized models, and a type that holds it."""


@contextmanager
def of_every_type(strategy: tf.distribute.Strategy) -> Iterator[tf.distribute.Strategy]:
    """The scope of a strategy of several workers, in which variables may be of any of these types.

    Args:
        strategy: A `MultiWorkerMirroredStrategy`.
    """
    with strategy.scope(), tf.variable_creator_scope(partial(_made, strategy.extended)):
        yield strategy


def _made(extended: Any, make: Callable[..., Any], **kwargs: Any) -> Any:
    """Makes a variable that begins with the chief's value on all workers."""
    dtype = kwargs.get("dtype")
    dtype = dtype and tf.as_dtype(dtype)
    if dtype not in _SENT_AS:
        return make(**kwargs)
    initial, wide = kwargs["initial_value"], _SENT_AS[dtype]

    def widened() -> tf.Tensor:
        return tf.cast(initial() if callable(initial) else initial, wide)

    sent = make(**kwargs | {"initial_value": widened, "dtype": wide}).read_value()
    with without_sending_initial_values(extended):
        return make(**kwargs | {"initial_value": tf.cast(sent, dtype)})
