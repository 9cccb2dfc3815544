"""Gives the variables of all workers the chief's initial values, whatever their dtype.

TensorFlow itself can send the initial values of only some dtypes.
"""

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
"""Dtypes that TensorFlow's broadcast does not support, with a wider one that holds their values."""


@contextmanager
def of_every_type(strategy: tf.distribute.Strategy) -> Iterator[tf.distribute.Strategy]:
    """Context like the strategy's scope, in which variables of every dtype can be made.

    In the scope itself this fails for the dtypes in `_SENT_AS`.

    Args:
        strategy: A `MultiWorkerMirroredStrategy`.
    """
    with strategy.scope(), tf.variable_creator_scope(partial(_made, strategy.extended)):
        yield strategy


def _made(extended: Any, make: Callable[..., Any], **kwargs: Any) -> Any:
    """Makes a variable whose initial value is the chief's on all workers.

    Args:
        extended: `strategy.extended` of the strategy.
        make: Makes a variable, as TensorFlow does without this function.
        **kwargs: The arguments of `make`.
    """
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
