"""Checksums of the batches of a tf.data pipeline, by which they are recognized when read again."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from kfit.inputs.reader import print_of

_UNREAD = (tf.variant, tf.resource)
"""Types of tensors that no Python code can read, such as those of a data set in a batch."""


class BatchPrints:
    """Checksums of the batches of one pipeline, recorded as it makes them.

    Batches are made ahead of training, and a snapshot needs the checksum of the last batch that was
    trained on. So those of the batches that training has not taken yet are kept.

    Attributes:
        last: The checksum of the last batch that was taken; 0 before the first one.
        made: The number of batches that were made in the present pass, or in the last one.
    """

    def __init__(self) -> None:
        self._drawn: dict[int, int] = {}
        self.last = self.made = 0

    def recorded(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Returns a data set of the same batches, whose checksums this object records.

        Args:
            dataset: The pipeline. It calls Python for its batches anyway, so another call for each
                batch costs little.
        """

        @tf.autograph.experimental.do_not_convert
        def record(number: tf.Tensor, batch: Any) -> Any:
            parts = tf.nest.flatten(batch, expand_composites=True)
            read = [part for part in parts if part.dtype not in _UNREAD]
            tf.numpy_function(self._record, [number, *read], [])
            return batch

        return dataset.enumerate().map(record)

    def begin(self) -> None:
        """Forgets the batches that were made; called before an iterator is created."""
        self._drawn = {}
        self.made = 0

    def took(self, taken: int) -> None:
        """Moves `last` on, since training has taken batches.

        Args:
            taken: The number of batches that it has taken from the present iterator.
        """
        self.last = self._drawn.get(taken - 1, self.last)
        for number in [number for number in list(self._drawn) if number < taken]:
            self._drawn.pop(number, None)

    def _record(self, number: np.ndarray, *parts: np.ndarray) -> None:
        self._drawn[int(number)] = print_of(parts, rows=1)
        self.made = int(number) + 1
