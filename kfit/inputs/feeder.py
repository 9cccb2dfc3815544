"""Iterators that are fed with a few batches at a time, and used again and again.

TensorFlow takes some 60 ms to make a pipeline and its iterator, as long as hundreds of small steps.
A program may call `fit`, `evaluate` or `predict` with few batches of arrays very often. Such a call
borrows the iterator of an earlier call, if there is one for batches of the same shapes and dtypes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.inputs.batches import own_options
from kfit.internals.runtime import runtime

MOST, LARGEST = 32, 2**24
"""The number of batches, and of their bytes, up to which it is faster to feed an iterator than to
make a pipeline."""


class Feeder:
    """An iterator over batches of arrays, which later calls of `fit` can use again.

    The iterator yields the batches that were passed to `feed`. A call of `fit` borrows a `Feeder`
    by `lent`, and returns it by `take_back`. A call within this `fit`, such as an `evaluate` in a
    callback, gets a different `Feeder`.

    Args:
        spec: The specs of the tensors of a batch; all dimensions are known.

    Attributes:
        iterator: The iterator; it yields a tuple of tensors for each batch.
        runtime: TensorFlow's runtime when the iterator was created. The iterator is lost when the
            runtime is reset.
    """

    def __init__(self, spec: Sequence[tf.TensorSpec]) -> None:
        self.spec = tuple(spec)
        self.runtime = runtime()
        with tf.init_scope(), tf.device("CPU:0"):
            self._queue = tf.queue.FIFOQueue(
                MOST, [part.dtype for part in spec], [part.shape for part in spec]
            )
            numbers = tf.data.Dataset.range(np.iinfo(np.int64).max)
            batches = numbers.map(lambda _: self._next()).with_options(own_options())
            self.iterator = iter(batches)

    def feed(self, tensors: Sequence[tf.Tensor]) -> None:
        """Makes the iterator yield these batches next, and drops batches that it has not yielded.

        Args:
            tensors: One tensor for each tensor of a batch, such as `x` and `y`. Each has the shape
                `(batches, ...)`: it contains the values for all batches, stacked along a new first
                axis. The number of batches is at most `MOST`.
        """
        left = self._queue.size()
        if left:  # training was stopped within an epoch
            self._queue.dequeue_many(left)
        self._queue.enqueue_many(list(tensors))

    def _next(self) -> tuple[Any, ...]:
        batch = self._queue.dequeue()
        return tuple(batch) if isinstance(batch, list) else (batch,)


_unused: deque[Feeder] = deque(maxlen=8)
"""Iterators that no call uses now, the one that was used last at the end. There is
no lock, since each operation is atomic: the finalizer of an iterator that `predict_iter` has
returned may give a `Feeder` back at any time, also in the thread that is borrowing one."""


def lent(spec: Sequence[tf.TensorSpec]) -> Feeder:
    """Returns a `Feeder` that no other call uses, for batches of this spec.

    It is one that was given back or, if there is none for this spec, a new one.
    """
    for feeder in _unused.copy():
        if feeder.spec == tuple(spec) and feeder.runtime is runtime():
            with suppress(ValueError):  # another thread has just borrowed it
                _unused.remove(feeder)
                return feeder
    return Feeder(spec)


def take_back(feeder: Feeder) -> None:
    """Gives back a `Feeder` that `lent` returned, so that a later call can use it."""
    _unused.append(feeder)
