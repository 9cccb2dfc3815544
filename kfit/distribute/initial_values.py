"""Lets the variables of all workers start with the chief's values, whatever their dtype.

In the scope of a `MultiWorkerMirroredStrategy`, TensorFlow sends the initial value of each new
variable from the chief to the other workers. It fails to do so for some dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import tensorflow as tf

from kfit.internals.strategies import scope_in_default_scope, without_sending_initial_values

_SENT_AS = {
    tf.bfloat16: tf.float32,
    tf.int8: tf.int32,
    tf.uint8: tf.int32,
    tf.int16: tf.int32,
    tf.uint16: tf.int32,
    tf.uint32: tf.int64,
}
"""The dtypes that TensorFlow cannot send, each with a wider dtype that holds its values."""


@contextmanager
def of_every_type(strategy: tf.distribute.Strategy) -> Iterator[tf.distribute.Strategy]:
    """Context like a strategy's scope, but one in which variables of every dtype can be created.

    In the scope itself, TensorFlow sends the initial value of each new variable from the chief to
    the other workers, and fails for the dtypes in `_SENT_AS`.

    Args:
        strategy: A `MultiWorkerMirroredStrategy`.
    """
    made = tf.variable_creator_scope(partial(_made, strategy.extended))
    with scope_in_default_scope(strategy), made:
        yield strategy


def _made(extended: Any, make: Callable[..., Any], **kwargs: Any) -> Any:
    """Creates a variable whose initial value on all workers is that of the chief.

    TensorFlow calls this function for each variable that is created in the context `of_every_type`.
    Dtypes that TensorFlow cannot send are sent as a wider dtype.

    Args:
        extended: The attribute `extended` of the strategy.
        make: The function by which TensorFlow would create the variable otherwise.
        **kwargs: The arguments of `make`, such as `initial_value` and `dtype`.
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
