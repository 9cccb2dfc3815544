"""Makes the global batch of `train_on_batch`, `test_on_batch` and `predict_on_batch`.

Programs call these methods in loops, usually with batches of one form: arrays of the same kinds,
dtypes and inner shapes. What does not depend on the values is kept from one batch to the next.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kfit.distribute.strategy import Strategy
from kfit.inputs import BatchLayout, Segment, as_batches, require_arrays
from kfit.inputs.arrays import ArrayBatches
from kfit.inputs.stored import reads_in_place

_Data = tuple[Any, Any, Any]


@dataclass(frozen=True)
class OneBatch:
    """One global batch, of which each task has all rows.

    Attributes:
        spec: The structure of the batch, made of `keras.KerasTensor`s (see `Batches.spec`).
        segment: A segment (a group of steps) of one step, which reads the batch.
    """

    spec: Any
    segment: Segment

    @property
    def examples_per_step(self) -> int | None:
        """The number of examples of the batch; None if unknown."""
        examples = self.segment.layout.examples
        return examples if isinstance(examples, int) else None

    def close(self) -> None:
        """Does nothing: a batch holds nothing that must be released. `Batches` have this method."""


class OneBatchMaker:
    """Makes global batches of arrays, faster if an earlier batch had the same form."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Any, BatchLayout]] = {}

    def make(
        self, data: _Data, class_weight: Mapping[int, float] | None = None, *, trains: bool
    ) -> OneBatch:
        """Makes one global batch. All tasks must pass the same data, and each task gets all rows.

        As in Keras, the batch is `(x, y, sample_weight)`, with None for what is missing, or `(x,)`
        for a prediction; and the arrays keep their dtypes, unlike those of `fit`.

        Args:
            data: `x`, `y` and `sample_weight`, which must be arrays in any structure, or None.
            class_weight: The weight of each class, as for `fit`.
            trains: False if the batch is for a prediction.

        Raises:
            ValueError: If the data is not arrays, or the arrays differ in length or hold nothing.
        """
        form = _form(data, trains) if class_weight is None else None
        if form in self._known:
            spec, layout = self._known[form]
            return OneBatch(spec, Segment(layout, 1, element=_element(data)))
        require_arrays(*data)
        batches = as_batches(
            *data, strategy=_Alone(), steps=1, class_weight=class_weight, keeps_floats=True
        )
        assert isinstance(batches, ArrayBatches)
        batch = OneBatch(batches.spec, batches.whole(trains=trains))
        if form is not None:
            self._known[form] = batch.spec, batch.segment.layout
        return batch


def _form(data: _Data, trains: bool) -> Hashable | None:
    """Returns what the structure of a batch follows from, or None if it must be found anew.

    That is so unless `data` is NumPy arrays of numbers, small ones, with equally many examples.
    """
    arrays = [part for part in data if part is not None]
    if not all(map(_is_plain, arrays)):
        return None
    examples = {len(array) for array in arrays}
    if len(examples) != 1 or examples == {0}:
        return None
    parts = [None if part is None else (part.shape[1:], part.dtype) for part in data]
    return trains, *parts


def _is_plain(array: Any) -> bool:
    return (
        type(array) is np.ndarray
        and array.ndim > 0
        and array.dtype.kind in "biuf"
        and array.dtype.isnative
        and not reads_in_place(array)
    )


def _element(data: _Data) -> tuple[tf.Tensor, ...]:
    with tf.device("CPU:0"):
        return tuple(tf.convert_to_tensor(array) for array in data if array is not None)


class _Alone(Strategy):
    """A stand-in for a strategy: one worker with one replica, so that a task reads whole batches.

    A batch of `OneBatchMaker` is made with this stand-in, since each task gets all its rows.
    """

    num_replicas = num_local_replicas = num_workers = 1
    first_local_replica = worker_index = 0
    fetches_ahead = False
